"""Folders in Hugging Face's format, and names on its hub, as a pair."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from electra_lab.data.vocabulary import make_vocabulary
from electra_lab.inference.pair import Pair
from electra_lab.model.network import Network
from electra_lab.model.pair import EmbeddingSizes, make_pair
from electra_lab.model.transformers_names import from_transformers
from electra_lab.storage.files import read_json
from electra_lab.storage.hugging_face import CONFIG, MARK, Folder, read_folder, shape
from registry import backbones
from registry.errors import CheckpointError, ConfigError, DataError, LabError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

OURS = "electra_lab"  # the model type of networks that transformers does not have


@dataclass(frozen=True)
class _Opened:
    network: Network
    length: int  # of its longest input
    tokenizer: Tokenizer


def open_folders(source: str, device: torch.device) -> Pair:
    """Open an exported pair, or one model of transformers. Raises ConfigError, DataError."""
    parts = [part for part in ("discriminator", "generator") if (Path(source) / part / CONFIG).is_file()]
    found = {part: _open(source, part) for part in parts}
    if not found:
        alone = _open(source, None)  # one that only predicts tokens takes the generator's place
        found = {"generator" if list(alone.network.heads) == ["tokens"] else "discriminator": alone}
    tokenizer = next(iter(found.values())).tokenizer
    if any(each.tokenizer.get_vocab() != tokenizer.get_vocab() for each in found.values()):
        raise ConfigError(f"{source}: generator and discriminator have different vocabularies.")
    counts = torch.zeros(tokenizer.get_vocab_size(), dtype=torch.int64)  # exports do not have them
    networks = {role: each.network.to(device).eval() for role, each in found.items()}
    length = min([*(each.length for each in found.values()), *_trained_length(Path(source))])
    return Pair(source, tokenizer, make_vocabulary(tokenizer, counts, device), length, **networks)


def _trained_length(path: Path) -> list[int]:
    """Return the longest rows that an exported pair was trained on; positions beyond them were never trained."""
    if not (path / MARK).is_file():
        return []
    length = read_json(path / MARK).get("length")
    return [length] if isinstance(length, int) else []


def _open(source: str, part: str | None) -> _Opened:
    from electra_lab.tokenizers.pretrained import read_tokenizer

    path = Path(source) / (part or "")
    if _type(path) == OURS:
        network, longest = _of_the_lab(path)
    else:
        folder = read_folder(source, part)
        path, (network, longest) = folder.path, _of_transformers(folder)
    tokenizer, rows = read_tokenizer(path), network.embeddings.tokens.num_embeddings
    if (size := tokenizer.get_vocab_size()) > rows:
        raise DataError(f"{path}: its tokenizer has {size:,} tokens, but its network only {rows:,}.")
    return _Opened(network, longest, tokenizer)


def _type(path: Path) -> Any:
    try:
        return read_json(path / CONFIG)["model_type"] if (path / CONFIG).is_file() else None
    except (CheckpointError, KeyError, TypeError):
        return None  # read_folder says what is wrong


def _of_transformers(folder: Folder) -> tuple[Network, int]:
    place = folder.path / CONFIG
    sizes = shape(folder.config, place)
    backbone: Any = backbones.get("bert").component(
        sizes.dim, sizes.depth, sizes.heads, sizes.max_length, ff_mult=sizes.ff_mult, dropout=sizes.dropout
    )
    embedding = EmbeddingSizes(sizes.vocabulary_size, sizes.embedding_dim, sizes.max_length, sizes.dropout)
    pad = folder.config.get("pad_token_id") or 0
    _, network = make_pair(None, 0, backbone, sizes.dim, embedding, "none", pad, ("replaced", "tokens"))
    try:
        account = from_transformers(folder.tensors(), network, folder.kind)
    except ValueError as error:
        raise DataError(f"{folder.path}: {error}") from None
    for head in {name.split(".")[1] for name in account.new}:
        del network.heads[head]
    return network, sizes.max_length


def _of_the_lab(path: Path) -> tuple[Network, int]:
    try:
        from electra_lab.interop.hugging_face import models
    except ImportError:
        raise ConfigError(f"{path}: needs transformers. Run: pip install 'electra-lab[hugging-face]'") from None
    name = (read_json(path / CONFIG).get("architectures") or [""])[0]
    if not hasattr(models, str(name)):
        raise DataError(f"{path / CONFIG}: `architectures` names no class of the lab.")
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model: Any = getattr(models, name).from_pretrained(path)
    except LabError:
        raise
    except Exception as error:  # transformers and safetensors raise many types
        raise DataError(f"{path}: cannot be read ({str(error).splitlines()[0]}). Export it again.") from None
    finally:
        logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    network: Network = model.base_model.network
    return network, model.config.max_position_embeddings
