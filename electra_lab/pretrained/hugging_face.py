"""Folders in Hugging Face's format, and names on its hub, as trained models: config.json, tensors, tokenizer.

A pair is a folder with a model in `discriminator` and one in `generator`; export.json marks those that the lab wrote.
On the hub, the discriminator of a pair is in the folder itself. DeBERTa-v3 has both in one folder: the generator is
pytorch_model.generator.bin with generator_config.json.

Tensors are read from safetensors, or from the older .bin files as plain tensors: code in them is refused and never run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Annotated, Any
from zipfile import is_zipfile

import torch
from pydantic import BaseModel, Field
from safetensors.torch import load_file
from torch import Tensor

from electra_lab.pretrained.families import FAMILIES, Config, reading
from electra_lab.pretrained.trained_model import LAB, NETWORKS, Part, TrainedModel
from electra_lab.storage.catalog import jobs_in
from electra_lab.storage.files import open_regular, read_as, read_json
from registry import tokenizers
from registry.contracts.data import TOKENIZER_FILES
from registry.errors import CheckpointError, ConfigError, DataError, guide
from registry.signature import FolderOrName

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONFIG = "config.json"
MARK = "export.json"
# Formats of tensors, the preferred one first: a file, which may be in pieces with an index; and a pattern of the files
# on the hub that may belong to it.
PATTERNS = {"model.safetensors": "*.safetensors", "pytorch_model.bin": "*pytorch_model*.bin"}
TENSORS = tuple(PATTERNS)
# Our classes for transformers, by the head that they have of the network.
CLASSES = {"replaced": "ForPreTraining", "tokens": "ForMaskedLM", "": "Model"}
# The files of a generator next to its discriminator.
BESIDE = "generator_config.json", ("model.generator.safetensors", "pytorch_model.generator.bin")
AGAIN = "Download the model again."


class Mark(BaseModel, strict=True):
    """The content of export.json."""

    electra_lab: str
    run: str
    step: int
    length: Annotated[int, Field(ge=3)]  # of the rows of training, in tokens; later positions were never trained
    networks: dict[Annotated[str, Field(pattern=f"^({'|'.join((*NETWORKS, 'encoder'))})$")], dict[str, Any]]


def read_folders(source: str, base: Path | None = None, network: str | None = None) -> TrainedModel:
    """Open an exported pair, or one model of transformers. Raises ConfigError, DataError.

    base     the folder of relative paths, by default the working directory
    network  network of a pair to read; by default both
    """
    path = locate(source, base)
    folders = {name: path / name for name in NETWORKS if os.path.lexists(path / name / CONFIG)}
    if os.path.lexists(path / CONFIG):  # a pair that was pushed to the hub has its discriminator here
        folders = {"discriminator": path, **folders} if folders and os.path.lexists(path / MARK) else {}
    if folders:
        names = [network] if network and (network in folders or len(folders) == len(NETWORKS)) else list(folders)
        parts, mark = {name: read_part(folders.get(name, path / name), name) for name in names}, read_mark(path)
    else:
        whole, beside = path.resolve(), _has_tensors(path, BESIDE[1])
        alone = read_part(path, "generator" if beside and network == "generator" else "discriminator", beside=beside)
        if alone.heads == ("tokens",):  # one that only predicts tokens takes the generator's place
            alone = replace(alone, name="generator")
        parts = {alone.name: alone}
        if beside and network is None and alone.name == "discriminator":
            parts["generator"] = read_part(path, "generator", beside=True)
        mark = read_mark(whole.parent if whole.name in (*NETWORKS, "encoder") else whole)
    read = [_tokenizer(part.path) for part in parts.values()]
    vocabularies = [tokenizer.get_vocab() for tokenizer in read if tokenizer]
    if any(vocabulary != vocabularies[0] for vocabulary in vocabularies):
        raise ConfigError(f"{source}: generator and discriminator have different vocabularies.")
    return TrainedModel(source, parts, read[0], mark.length if mark else None)


def read_part(path: Path, name: str, *, beside: bool = False) -> Part:
    """Read a folder with one network. Raises DataError, ConfigError.

    beside  the folder has a discriminator, and next to it the files of a generator
    """
    place, tensor_files = BESIDE if beside and name == "generator" else (CONFIG, TENSORS)
    config = read_config(path, place)
    kind = config["model_type"]
    try:
        family = reading(config)
    except ValueError as error:
        raise ConfigError(f"{path / place}: model_type is {kind!r}: {error}") from None
    if family is None and kind != LAB:
        families = ", ".join(FAMILIES)
        raise ConfigError(
            f"{path / place}: model_type is {kind!r}; the lab reads {families}, its own exports, and the encoders in "
            f"{guide('encoders')}"
        )
    if family:
        backbone, embedding, size = family.read(Config(config, str(path / place)))
    else:
        backbone, embedding, size = of_the_lab(config, path)
    names = None
    read = read_tensors(path, tensor_files)
    if family:
        head = family.head_of(config, read)
        names = family.names(head)
        try:
            tensors = family.tensors_in(names.lab_tensors(read), head)
        except ValueError as error:
            raise DataError(f"{path}: does not fit: {error}") from None
        backbone |= family.shown_by(tensors)
    else:
        lab = f"{LAB}."
        tensors = {key.removeprefix(lab).removeprefix("network."): tensor for key, tensor in read.items()}
    plugin = str(config["plugin"]) if _is_file_name(config.get("plugin")) else None
    code = path / plugin if plugin and plugin.endswith(".py") else None
    part = Part(
        name=name,
        path=path,
        format=kind,
        backbone=backbone,
        embedding=embedding,
        vocabulary_size=size,
        tensors=tensors,
        files={file.name: file for file in files_of(path, tensor_files)},
        plugin=plugin,
        plugin_source=code.read_bytes() if code and code.is_file() else b"",
        names=names,
        read_as=family,
    )
    for head, ending in CLASSES.items():
        if head and config.get("architectures") == [f"ElectraLab{ending}"] and head not in part.heads:
            raise part.misfit(f"{part.stored_name(f'heads.{head}')} is missing.")
    return part


def of_the_lab(config: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Return backbone, embedding and size of the vocabulary of an export around another backbone than `bert`."""
    for key, kind in {"backbone": dict, "embedding": dict, "vocab_size": int}.items():
        if not isinstance(config.get(key), kind):
            raise DataError(f"{path / CONFIG}: {key} is missing or damaged. Export it again.")
    return config["backbone"], config["embedding"], config["vocab_size"]


def _tokenizer(path: Path) -> Tokenizer | None:
    if not any(os.path.lexists(path / name) for name in TOKENIZER_FILES):
        return None
    tokenizer: Tokenizer = tokenizers.get("pretrained").component((), path=path)
    return tokenizer


def read_tensors(path: Path, files: Sequence[str] = TENSORS) -> dict[str, Tensor]:
    """Return all tensors of a folder. Raises DataError if a file is missing, damaged or holds code.

    files  names of files, of which the first that exists is read
    """
    tensors: dict[str, Tensor] = {}
    for file, expected in files_of(path, files).items():
        of_file = _read(file)
        wrong = [] if expected is None else sorted(of_file.keys() ^ expected)  # names that only one of both has
        if wrong:
            has, does = ("has", "does not place") if wrong[0] in of_file else ("lacks", "places")
            raise DataError(f"{file}: {has} {wrong[0]}, which the index {does} there. {AGAIN}")
        tensors |= of_file
    return tensors


def _has_tensors(path: Path, files: Sequence[str]) -> bool:
    return any(os.path.lexists(path / name) or os.path.lexists(path / f"{name}.index.json") for name in files)


def _is_whole(path: Path, formats: int) -> bool:
    """Return True if every config of a folder has tensors in one of the first formats."""
    models = (CONFIG, TENSORS), BESIDE
    return all(_has_tensors(path, files[:formats]) for config, files in models if (path / config).is_file())


def files_of(path: Path, files: Sequence[str] = TENSORS) -> dict[Path, set[str] | None]:
    """Return the files, each with the names of its tensors if an index lists them."""
    for name in files:
        if os.path.lexists(path / name):
            return {path / name: None}
        index = path / f"{name}.index.json"
        if os.path.lexists(index):
            places = _json(index).get("weight_map")
            if not isinstance(places, dict) or not places or not all(map(_is_file_name, places.values())):
                raise DataError(f"{index}: is damaged: its weight_map must name a file of the folder per tensor.")
            pieces: dict[Path, set[str] | None] = {}
            for file in sorted(set(places.values())):
                pieces[path / file] = {name for name, place in places.items() if place == file}
            return pieces
    raise DataError(f"{path}: has no tensors: it has neither {' nor '.join(files)}, nor an index of pieces.")


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and "\0" not in name and Path(name).name == name


def locate(source: str, base: Path | None = None) -> Path:
    """Return the folder for `source`: a path, or a name on the Hugging Face hub, which is downloaded once.

    base  the folder of relative paths, by default the working directory

    Raises DataError if it is not there.
    """
    base = base or Path.cwd()
    path = base / os.path.expanduser(source)
    if FolderOrName(source).is_name(base):
        return _downloaded(source)
    if not os.path.isdir(path):
        reason = "is a file, not a folder" if os.path.exists(path) else "does not exist"
        raise DataError(f"{path}: {reason}.{jobs_in(path)}")
    return path


def read_config(path: Path, name: str = CONFIG) -> dict[str, Any]:
    """Return the config.json of a folder. Raises DataError, ConfigError."""
    if not os.path.lexists(path / name):
        if name != CONFIG:
            raise DataError(f"{path}: has the tensors of a generator, but no {name}. Write it: its {CONFIG}.")
        reason = f"is neither a model in Hugging Face format (it has no {CONFIG}) nor a run directory."
        raise DataError(f"{path}: {reason}{jobs_in(path)}")
    config = _json(path / name)
    if config.get("model_type") is None:
        raise ConfigError(f'{path / name}: lacks model_type. Add it, such as "model_type": "electra".')
    return config


def read_mark(path: Path) -> Mark | None:
    """Return the content of export.json, None if there is no such file. Raises DataError."""
    try:
        return read_as(Mark, path / MARK, "Export the run again.") if os.path.lexists(path / MARK) else None
    except CheckpointError as error:
        raise DataError(str(error)) from None


def _downloaded(name: str) -> Path:
    """Return the folder of a model of the hub: its copy in the local cache if there is no newer one. Raises DataError.

    Downloads only files that may be read, and a format of tensors only if a model has none of those before it.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError
    except ImportError:
        cure = "To download it: pip install 'electra-lab[hugging-face]'"
        raise DataError(f"{name}: is not a folder, and models of the Hugging Face hub cannot be read. {cure}") from None
    patterns = ["*.json", "*.txt", "*.model", "*.py"]  # a plug-in, for the user to read
    try:
        for formats, pattern in enumerate(PATTERNS.values(), start=1):
            patterns.append(pattern)
            path = Path(snapshot_download(name, allow_patterns=patterns))
            folders = [path, *(path / network for network in NETWORKS)]
            if all(_is_whole(folder, formats) for folder in folders):
                break
        return path
    except RepositoryNotFoundError:
        reason = "the Hugging Face hub has no model of that name that you may read"
    except LocalEntryNotFoundError:
        reason = "the Hugging Face hub cannot be reached, and its local cache has no copy"
    except Exception as error:  # the package passes on all errors of its HTTP client
        reason = f"the Hugging Face hub did not give it ({(str(error).splitlines() or ['?'])[0]})"
    raise DataError(
        f"{name}: is neither a folder here, such as a run directory or an export, nor a model that can be downloaded: "
        f"{reason}. Check the name, or name a folder."
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        return read_as(dict[str, Any], path, AGAIN)
    except CheckpointError as error:
        raise DataError(str(error)) from None


def _read(file: Path) -> dict[str, Tensor]:
    try:
        with open_regular(file):  # the libraries would wait for the other end of a pipe
            pass
        if file.suffix == ".safetensors":
            return load_file(file)
        saved: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # both libraries raise several types
        if isinstance(error, UnpicklingError) and _is_saved(file):
            cure = "Save the model again as safetensors."
            raise DataError(
                f"{file}: holds more than tensors, which could be code, so it is not read. {cure}"
            ) from None
        reason = getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0]
        if isinstance(error, UnpicklingError):
            reason = "it is not a file of torch"
        raise DataError(f"{file}: cannot be read ({reason}). {AGAIN}") from None
    if not isinstance(saved, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in saved.items()
    ):
        raise DataError(f"{file}: is not a file of tensors by name.")
    if odd := [name for name, tensor in saved.items() if not _is_dense(tensor)]:
        raise DataError(f"{file}: {odd[0]} has no dense values. Save the model again as safetensors.")
    return dict(saved)


def _is_dense(tensor: Tensor) -> bool:
    """Return False if elements share values: an expanded tensor would grow when it is copied."""
    return tensor.layout is torch.strided and not tensor.is_meta and tensor.nbytes <= tensor.untyped_storage().nbytes()


def _is_saved(file: Path) -> bool:
    """Return True for a file of torch, a zip or a pickle, and False for an HTML page or an LFS pointer."""
    with open_regular(file) as stream:
        return stream.read(1) == b"\x80" or is_zipfile(stream)


def longest_of_tokenizer(path: Path) -> int:
    """Return the longest input of a tokenizer, which may be more than any network's."""
    file = path / "tokenizer_config.json"
    longest = read_json(file).get("model_max_length") if file.is_file() else None
    return int(longest) if isinstance(longest, int | float) and longest >= 3 else 1 << 30
