"""Models in Hugging Face format, in a folder or on the hub: config.json, tensors, and the files of a tokenizer.

Tensors are read from safetensors, or from the older .bin files as plain tensors: code in them is refused and never run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal, cast

import torch
from safetensors.torch import load_file
from torch import Tensor

from electra_lab.storage.files import read_json
from registry.errors import CheckpointError, ConfigError, DataError
from registry.folder_or_name import FolderOrName

CONFIG = "config.json"
MARK = "export.json"  # in the folder of a pair that the lab wrote
TOKENIZER = ("tokenizer.json", "vocab.txt")
TENSORS = ("model.safetensors", "pytorch_model.bin")  # the first that is there, whole or in pieces with an index
# How the encoder of the lab computes. A file that lacks one of these keys means the same.
FIXED = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2, "position_embedding_type": "absolute",
         "is_decoder": False, "add_cross_attention": False}  # fmt: skip
SIZES = ("vocab_size", "max_position_embeddings", "hidden_size", "num_hidden_layers", "num_attention_heads",
         "intermediate_size")  # fmt: skip


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
        return any((self.path / name).is_file() for name in TOKENIZER)

    def files(self) -> list[Path]:
        """Return the files of the tensors. Raises DataError if there are none."""
        return self._files()[0]

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by transformers' names. Raises DataError if a file is missing, damaged or holds code."""
        files, indexed = self._files()
        found = {name: tensor for file in files for name, tensor in _read(file).items()}
        if wrong := sorted(found.keys() ^ (found.keys() if indexed is None else indexed)):
            has, lacks = ("its files", "its index") if wrong[0] in found else ("its index", "its files")
            raise DataError(f"{self.path}: {wrong[0]} is in {has} but not in {lacks}. Download the model again.")
        return found

    def _files(self) -> tuple[list[Path], set[str] | None]:
        """Return the files and, if an index lists them, the names of the tensors that are in them."""
        for name in TENSORS:
            if (self.path / name).is_file():
                return [self.path / name], None
            index = self.path / f"{name}.index.json"
            if index.is_file():
                places = _json(index).get("weight_map")
                if not isinstance(places, dict) or not all(
                    isinstance(n, str) and Path(n).name == n for n in places.values()
                ):
                    raise DataError(f"{index}: is damaged: its weight_map must name a file of the folder per tensor.")
                return [self.path / file for file in sorted(set(places.values()))], set(places)
        raise DataError(f"{self.path}: has no tensors: it has neither {' nor '.join(TENSORS)}, nor an index of pieces.")


def read_folder(source: str, part: str | None = None, beside: Path | None = None) -> Folder:
    """Open a model: a folder, or the name of one on the Hugging Face hub, which is downloaded once.

    part    the sub-folder to open if `source` is a pair, with a model in `discriminator` and one in `generator`
    beside  the folder that relative paths begin in, by default the working directory

    Raises DataError if it is not there or cannot be read, ConfigError if it is a model of another kind.
    """
    beside = beside or Path.cwd()
    path = beside / os.path.expanduser(source)
    if FolderOrName(source).is_name(beside):
        path = _downloaded(source)
    elif not os.path.isdir(path):
        raise DataError(f"{path}: {'is a file, not a folder' if os.path.exists(path) else 'does not exist'}.")
    if part and not (path / CONFIG).is_file() and (path / part).is_dir():
        path /= part
    if not (path / CONFIG).is_file():
        raise DataError(f"{path}: is neither a model in Hugging Face format (it has no {CONFIG}) nor a run directory.")
    config = _json(path / CONFIG)
    kind = config.get("model_type")
    if kind not in ("electra", "bert"):
        cure = " Name the run that it was exported from." if kind == "electra_lab" else ""
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
    sizes["embedding_size"] = config.get("embedding_size", sizes["hidden_size"])
    for key, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise ConfigError(f"{place}: {key} is {size!r}; it must be a positive number.")
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
    wanted = ["*.json", "*.txt", "*.safetensors"]
    try:
        path = Path(snapshot_download(name, allow_patterns=wanted))
        if not any(path.rglob("*.safetensors")):
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
        found = read_json(path)
    except CheckpointError as error:
        raise DataError(str(error)) from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: is damaged: it must be a mapping.")
    return found


def _read(file: Path) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        found: Any = torch.load(file, map_location="cpu", weights_only=True)
    except UnpicklingError:
        cure = "Save the model again as safetensors."
        raise DataError(f"{file}: holds more than tensors, which could be code, so it is not read. {cure}") from None
    except Exception as error:  # both libraries raise several types
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{file}: cannot be read ({reason}). Download the model again.") from None
    if not isinstance(found, dict) or not all(isinstance(each, Tensor) for each in found.values()):
        raise DataError(f"{file}: is not a file of tensors by name.")
    return dict(found)
