"""Folders in Hugging Face's format, and names on its hub, as a pair."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import ValidationError

from electra_lab.data.vocabulary import make_vocabulary, special_ids
from electra_lab.inference.pair import Pair
from electra_lab.model.network import Network
from electra_lab.model.pair import EmbeddingSizes, make_pair
from electra_lab.model.weights import Account, account_for, fill, own_tensors
from electra_lab.pretrained.hugging_face import (
    CONFIG,
    OURS,
    PARTS,
    Folder,
    locate,
    read_config,
    read_folder,
    read_mark,
    read_tensors,
    shape,
)
from electra_lab.pretrained.transformers_names import FOREIGN, from_transformers
from registry import backbones
from registry.errors import ConfigError, DataError, LabError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

HEADS = ("replaced", "tokens")


@dataclass(frozen=True)
class _Opened:
    network: Network
    length: int  # of its longest input
    tokenizer: Tokenizer


def open_folders(source: str, device: torch.device) -> Pair:
    """Open an exported pair, or one model of transformers. Raises ConfigError, DataError."""
    path = locate(source)
    parts = [part for part in PARTS if os.path.lexists(path / part / CONFIG) and not os.path.lexists(path / CONFIG)]
    if parts:
        found, mark = {part: _open(path / part) for part in parts}, read_mark(path)
    else:
        alone, whole = _open(path), path.resolve()
        # One that only predicts tokens takes the generator's place.
        found = {"generator" if list(alone.network.heads) == ["tokens"] else "discriminator": alone}
        mark = read_mark(whole.parent) if whole.name in PARTS else None
    tokenizer = next(iter(found.values())).tokenizer
    if any(each.tokenizer.get_vocab() != tokenizer.get_vocab() for each in found.values()):
        raise ConfigError(f"{source}: generator and discriminator have different vocabularies.")
    counts = torch.zeros(tokenizer.get_vocab_size(), dtype=torch.int64)  # exports do not have them
    networks = {role: each.network.to(device).eval() for role, each in found.items()}
    length = min([*(each.length for each in found.values()), *([mark.length] if mark else [])])
    return Pair(source, tokenizer, make_vocabulary(tokenizer, counts, device), length, **networks)


def _open(path: Path) -> _Opened:
    from electra_lab.tokenizers.pretrained import read_tokenizer

    config = read_config(path)
    folder = None if config["model_type"] == OURS else read_folder(path)
    tokenizer = read_tokenizer(path)
    pad = special_ids(tokenizer)["pad"]  # whatever the config says: rows are padded with this
    network, rows = _of_transformers(folder, pad) if folder else _of_the_lab(path, config, pad)
    if (size := tokenizer.get_vocab_size()) > network.embeddings.tokens.num_embeddings:
        has = network.embeddings.tokens.num_embeddings
        raise DataError(f"{path}: its tokenizer has {size:,} tokens, but its network only {has:,}.")
    return _Opened(network, network.longest(rows), tokenizer)


def _of_transformers(folder: Folder, pad: int) -> tuple[Network, int]:
    sizes = shape(folder.config, folder.path / CONFIG)
    embedding = EmbeddingSizes(sizes.vocabulary_size, sizes.embedding_dim, sizes.max_length, sizes.dropout)
    try:
        with torch.device("meta"):  # no memory before the sizes are known to be those of the tensors
            backbone: Any = backbones.get("bert").component(
                sizes.dim, sizes.depth, sizes.heads, sizes.max_length, ff_mult=sizes.ff_mult, dropout=sizes.dropout
            )
            _, network = make_pair(None, 0, backbone, sizes.dim, embedding, "none", pad, HEADS)
        account = from_transformers(folder.tensors(), network, folder.kind)
    except (ValueError, RuntimeError) as error:  # torch's, if there is not the memory for such sizes
        raise DataError(f"{folder.path}: {_reason(error)}") from None
    _without(network, account)
    return network, sizes.max_length


def _of_the_lab(path: Path, config: dict[str, Any], pad: int) -> tuple[Network, int]:
    """Read an export around another backbone; of a file that has a second head, both."""
    try:
        from electra_lab.interop.hugging_face import models
    except ImportError:
        raise ConfigError(f"{path}: needs transformers. Run: pip install 'electra-lab[hugging-face]'") from None
    names = config.get("architectures")
    kind = getattr(models, str(names[0]), None) if isinstance(names, list) and names else None
    if not isinstance(kind, type) or not issubclass(kind, models.ElectraLabPreTrainedModel):
        raise DataError(f"{path / CONFIG}: `architectures` names no class of the lab.")
    given = {
        name.removeprefix("electra_lab.").removeprefix("network."): each for name, each in read_tensors(path).items()
    }
    try:
        settings = models.ElectraLabConfig.from_dict({**config, "_name_or_path": str(path), "pad_token_id": pad})
        sketch = models.sketch_network(settings, HEADS)
        for name, first in models.repeated(sketch).items():
            if first in given:
                given.setdefault(name, given[first])
        account = account_for(given, own_tensors(sketch), "electra_lab.network.{}".format, FOREIGN)
        network = models.make_network(settings, HEADS)
    except LabError:
        raise
    except Exception as error:  # transformers, pydantic and backbones raise many types
        raise DataError(f"{path}: does not fit: {_reason(error)} Export it again.") from None
    required = [name for name in account.new if name.split(".")[1] in getattr(kind, "heads", ())]
    if required:
        raise DataError(f"{path}: does not fit: electra_lab.network.{required[0]} is missing. Export it again.")
    _without(network, account)
    fill(network, given)
    return network, int(settings.max_position_embeddings)  # JSON may have it as 512.0


def _without(network: Network, account: Account) -> None:
    """Remove the heads for which there are no weights."""
    for head in {name.split(".")[1] for name in account.new}:
        del network.heads[head]


def _reason(error: Exception) -> str:
    """Return the words of an error as a sentence."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        section = "embedding" if error.title == "Embedding" else "backbone"
        said = f"{section}.{'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}"
    elif isinstance(error, KeyError):
        said = f"{CONFIG} lacks the key {error}"
    else:
        said = (str(error).splitlines() or [type(error).__name__])[0]
    return said if said.endswith(".") else f"{said}."
