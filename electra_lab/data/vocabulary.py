"""The Vocabulary of a tokenizer and its training tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from registry import Vocabulary
from registry.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

COUNTED = 1 << 24
SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of the special tokens. Raises DataError if the tokenizer lacks one."""
    ids: dict[str, Any] = {name: tokenizer.token_to_id(name) for name in SPECIAL}
    if missing := sorted(name for name, id in ids.items() if id is None):
        raise DataError(f"the tokenizer has no {', '.join(missing)}; the lab needs all of {', '.join(SPECIAL)}.")
    return ids


def count_tokens(stream: NDArray[Any], size: int) -> torch.Tensor:
    """Return how often each of `size` tokens occurs, Int[V]. In pieces: numpy counts in eight bytes a token."""
    pieces = (stream[start : start + COUNTED] for start in range(0, len(stream), COUNTED))
    return torch.from_numpy(sum((np.bincount(piece, minlength=size) for piece in pieces), np.zeros(size, np.int64)))


def make_vocabulary(tokenizer: Tokenizer, counts: torch.Tensor, device: torch.device) -> Vocabulary:
    """Return the vocabulary of a tokenizer; `counts` are training frequencies, Int[V].

    Raises DataError if the tokenizer lacks a special token.
    """
    size, ids = tokenizer.get_vocab_size(), special_ids(tokenizer)
    is_special = torch.zeros(size, dtype=torch.bool)
    is_special[list(ids.values())] = True
    begins = torch.tensor(_begin_words(tokenizer))
    return Vocabulary(
        size=size,
        pad_id=ids["[PAD]"],
        cls_id=ids["[CLS]"],
        sep_id=ids["[SEP]"],
        mask_id=ids["[MASK]"],
        special_ids=tuple(sorted(ids.values())),
        is_special=is_special.to(device),
        ordinary_ids=(~is_special).nonzero().squeeze(1).to(device),
        word_start=(begins & ~is_special).to(device),
        counts=counts.to(device),
    )


def stand_in_vocabulary(size: int) -> Vocabulary:
    """Return a vocabulary of the given size without words, for computations that depend only on shapes."""
    ids = torch.arange(size)
    pad, cls, sep, mask = range(len(SPECIAL))
    special = ids < len(SPECIAL)
    return Vocabulary(
        size, pad, cls, sep, mask, (pad, cls, sep, mask), special, ids[len(SPECIAL) :], ~special, torch.ones_like(ids)
    )


def _begin_words(tokenizer: Tokenizer) -> list[bool]:
    """Return which tokens begin a word, by the mark of the tokenizer's kind. Other than letters and digits stand alone.

    WordPiece marks tokens that continue a word (`##`), byte-level BPE and Unigram those that begin one (`\u0120`,
    `\u2581`).
    """
    kind = (json.loads(tokenizer.to_str())["decoder"] or {}).get("type")
    names = [tokenizer.id_to_token(id) or "" for id in range(tokenizer.get_vocab_size())]
    if kind in ("ByteLevel", "Metaspace"):
        mark = "\u0120" if kind == "ByteLevel" else "\u2581"
        return [name.startswith(mark) or not name[:1].isalnum() for name in names]
    return [not name.startswith("##") for name in names]
