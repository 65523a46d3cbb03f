"""Models in Hugging Face format, in a folder or on the hub: config.json, tensors, and the files of a tokenizer.

A pair is a folder with a model in `discriminator` and one in `generator`; export.json marks those that the lab wrote.

Tensors are read from safetensors, or from the older .bin files as plain tensors: code in them is refused and never run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Annotated, Any, Literal, cast
from zipfile import is_zipfile

import torch
from pydantic import BaseModel, Field
from safetensors.torch import load_file
from torch import Tensor

from electra_lab.storage.files import open_regular, read_as
from registry.errors import CheckpointError, ConfigError, DataError
from registry.folder_or_name import FolderOrName

CONFIG = "config.json"
MARK = "export.json"
PARTS = ("discriminator", "generator")
TOKENIZER = ("tokenizer.json", "vocab.txt")
TOKENIZER_SETTINGS = "tokenizer_config.json"
TENSORS = ("model.safetensors", "pytorch_model.bin")  # the first that is there, whole or in pieces with an index
# How the encoder of the lab computes. A file that lacks one of these keys means the same.
FIXED = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2, "position_embedding_type": "absolute",
         "is_decoder": False, "add_cross_attention": False}  # fmt: skip
SIZES = ("vocab_size", "max_position_embeddings", "hidden_size", "num_hidden_layers", "num_attention_heads",
         "intermediate_size")  # fmt: skip
LARGEST = 1 << 24  # of a size, so that a damaged one is refused before memory is asked for
MOST_LAYERS = 1_000  # as in an experiment
KINDS = ("electra", "bert")
AGAIN = "Download the model again."
OURS = "electra_lab"  # the model type of networks that transformers does not have
# The token table of a network; the first group is what a wrapper has put before all names of the network.
_TABLE = re.compile(
    r"((?:\w+\.)*?)(?:electra\.|bert\.|electra_lab\.)?(?:network\.)?embeddings\.(?:word_embeddings|tokens)\.weight"
)


class Mark(BaseModel, strict=True):
    """The content of export.json."""

    electra_lab: str
    run: str
    step: int
    length: Annotated[int, Field(ge=3)]  # of the rows of training, in tokens; later positions were never trained
    networks: dict[Annotated[str, Field(pattern=f"^({'|'.join(PARTS)})$")], dict[str, Any]]


@dataclass(frozen=True)
class Shape:
    """The sizes of a model, in our words."""

    vocabulary_size: int
    embedding_dim: int
    max_length: int
    dim: int
    depth: int
    heads: int
    ff_mult: float
    dropout: float


@dataclass(frozen=True)
class Folder:
    """A model in Hugging Face format."""

    path: Path
    config: dict[str, Any]
    kind: Literal["electra", "bert"]

    @property
    def has_tokenizer(self) -> bool:
        return any(os.path.lexists(self.path / name) for name in TOKENIZER)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by transformers' names. Raises DataError if a file is missing, damaged or holds code."""
        return read_tensors(self.path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a folder. Raises DataError if a file is missing, damaged or holds code."""
    found: dict[str, Tensor] = {}
    for file, expected in files_of(path).items():
        held = _read(file)
        if wrong := sorted(held.keys() ^ (held.keys() if expected is None else expected)):
            has, does = ("has", "does not place") if wrong[0] in held else ("lacks", "places")
            raise DataError(f"{file}: {has} {wrong[0]}, which the index {does} there. {AGAIN}")
        found |= held
    return _unwrapped(path, found)


def _unwrapped(path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove what wrappers have put before the names of a network: `module.`, `_orig_mod.`, `discriminator.`."""
    wrappers = [found[1] for name in tensors if (found := _TABLE.fullmatch(name))]
    wrapper = min(wrappers, key=len, default="")  # a backbone may have another table, further inside
    if twice := [name for name in tensors if wrapper and f"{wrapper}{name}" in tensors]:
        raise DataError(f"{path}: has {twice[0]} twice, once after '{wrapper}'. Save the model again.")
    return {name.removeprefix(wrapper): tensor for name, tensor in tensors.items()}


def files_of(path: Path) -> dict[Path, set[str] | None]:
    """Return the files, each with the names of its tensors if an index lists them."""
    for name in TENSORS:
        if os.path.lexists(path / name):
            return {path / name: None}
        index = path / f"{name}.index.json"
        if os.path.lexists(index):
            places = _json(index).get("weight_map")
            if not isinstance(places, dict) or not places or not all(map(_is_file_name, places.values())):
                raise DataError(f"{index}: is damaged: its weight_map must name a file of the folder per tensor.")
            return {path / file: {n for n, p in places.items() if p == file} for file in sorted(set(places.values()))}
    raise DataError(f"{path}: has no tensors: it has neither {' nor '.join(TENSORS)}, nor an index of pieces.")


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and "\0" not in name and Path(name).name == name


def locate(source: str, beside: Path | None = None) -> Path:
    """Return the folder that `source` means: a path, or a name on the Hugging Face hub, which is downloaded once.

    beside  the folder that relative paths begin in, by default the working directory

    Raises DataError if it is not there.
    """
    beside = beside or Path.cwd()
    path = beside / os.path.expanduser(source)
    if FolderOrName(source).is_name(beside):
        return _downloaded(source)
    if not os.path.isdir(path):
        raise DataError(f"{path}: {'is a file, not a folder' if os.path.exists(path) else 'does not exist'}.")
    return path


def read_config(path: Path) -> dict[str, Any]:
    """Return the config.json of a folder; tensors show a model_type that it lacks. Raises DataError, ConfigError."""
    if not os.path.lexists(path / CONFIG):
        raise DataError(f"{path}: is neither a model in Hugging Face format (it has no {CONFIG}) nor a run directory.")
    config = _json(path / CONFIG)
    if config.get("model_type") is None:
        roots = {name.partition(".")[0] for name in read_tensors(path)} & {*KINDS, OURS}
        if len(roots) != 1:
            cure = 'Add "model_type": "electra" or "bert".'
            raise ConfigError(f"{path / CONFIG}: lacks model_type, and the names of the tensors do not show it. {cure}")
        config["model_type"] = roots.pop()
    return config


def read_mark(path: Path) -> Mark | None:
    """Return what export.json says about the pair at `path`, None if there is none. Raises DataError."""
    try:
        return read_as(Mark, path / MARK, "Export the run again.") if os.path.lexists(path / MARK) else None
    except CheckpointError as error:
        raise DataError(str(error)) from None


def read_folder(source: str | Path, part: str | None = None, beside: Path | None = None) -> Folder:
    """Open a model of transformers that `locate` finds.

    part    the sub-folder to open if `source` is a pair

    Raises DataError if it is not there or cannot be read, ConfigError if it is a model of another kind.
    """
    path = locate(str(source), beside)
    if part and not os.path.lexists(path / CONFIG) and os.path.isdir(path / part):
        path /= part
    config = read_config(path)
    kind = config["model_type"]
    if kind not in KINDS:
        cure = " Name the run that it was exported from." if kind == OURS else ""
        raise ConfigError(f"{path / CONFIG}: model_type is {kind!r}; electra and bert are supported.{cure}")
    return Folder(path, config, kind)


def shape(config: Mapping[str, Any], place: object = CONFIG) -> Shape:
    """Return the sizes of the model that a config.json describes. Raises ConfigError if `bert` cannot be that model.

    place  what errors begin with
    """
    for key, ours in FIXED.items():
        if (theirs := config.get(key, ours)) != ours:
            raise ConfigError(f"{place}: {key} is {theirs!r}, but the lab's `bert` computes with {ours!r}.")
    sizes = {key: config.get(key) for key in SIZES}
    usual = 128 if config.get("model_type") == "electra" else sizes["hidden_size"]  # as in transformers
    sizes["embedding_size"] = config.get("embedding_size", usual)
    for key, size in sizes.items():
        most = MOST_LAYERS if key == "num_hidden_layers" else LARGEST
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= most:
            raise ConfigError(f"{place}: {key} is {size!r}; it must be a whole number from 1 to {most:,}.")
    given = cast("dict[str, int]", sizes)
    dim, heads = given["hidden_size"], given["num_attention_heads"]
    if dim % heads:
        raise ConfigError(f"{place}: num_attention_heads {heads} does not divide hidden_size {dim}.")
    dropout = config.get("hidden_dropout_prob", 0.1)
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ConfigError(f"{place}: hidden_dropout_prob is {dropout!r}; it must be at least 0 and below 1.")
    return Shape(
        vocabulary_size=given["vocab_size"],
        embedding_dim=given["embedding_size"],
        max_length=given["max_position_embeddings"],
        dim=dim,
        depth=given["num_hidden_layers"],
        heads=heads,
        ff_mult=given["intermediate_size"] / dim,
        dropout=float(dropout),
    )


def _downloaded(name: str) -> Path:
    """Return the folder of a model of the hub: its copy in the local cache if there is no newer one. Raises DataError.

    Only what is read is downloaded; .bin files if there is nothing else.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError
    except ImportError:
        cure = "To download it: pip install 'electra-lab[hugging-face]'"
        raise DataError(f"{name}: is not a folder, and models of the Hugging Face hub cannot be read. {cure}") from None
    wanted = ["*.json", "*.txt", "*.safetensors", "*.py"]  # a plug-in, for the user to read
    try:
        path = Path(snapshot_download(name, allow_patterns=wanted))
        models = [each for each in (path, *(path / part for part in PARTS)) if (each / CONFIG).is_file()]
        there = [any((each / f"{TENSORS[0]}{end}").is_file() for end in ("", ".index.json")) for each in models]
        if not all(there):
            path = Path(snapshot_download(name, allow_patterns=[*wanted, "*pytorch_model*.bin"]))
        return path
    except RepositoryNotFoundError:
        reason = "the Hugging Face hub has no model of that name that you may read"
    except LocalEntryNotFoundError:
        reason = "the Hugging Face hub cannot be reached, and its local cache has no copy"
    except Exception as error:  # the package passes on whatever its HTTP client raises
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
        found: Any = torch.load(file, map_location="cpu", weights_only=True)
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
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(each, Tensor) for name, each in found.items()
    ):
        raise DataError(f"{file}: is not a file of tensors by name.")
    if odd := [name for name, each in found.items() if not _is_dense(each)]:
        raise DataError(f"{file}: {odd[0]} has no dense values. Save the model again as safetensors.")
    return dict(found)


def _is_dense(tensor: Tensor) -> bool:
    """Return False if there is not a value for each element: an expanded tensor would grow when it is copied."""
    return tensor.layout is torch.strided and not tensor.is_meta and tensor.nbytes <= tensor.untyped_storage().nbytes()


def _is_saved(file: Path) -> bool:
    """Return True for a file of torch, and not a page or a pointer in its place: a zip or a pickle."""
    with open_regular(file) as stream:
        return stream.read(1) == b"\x80" or is_zipfile(stream)
