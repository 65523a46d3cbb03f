"""Shared by the packings: read pieces of the text, and put them between [CLS] and [SEP]."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from registry import Packed, Tokens, Vocabulary

IndexArray = NDArray[np.int64]


def starts_of(sizes: NDArray[np.integer]) -> IndexArray:
    """Return the starts of consecutive pieces, and the end: [0, s0, s0 + s1, ...]."""
    starts = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, dtype=np.int64, out=starts[1:])
    return starts


def holder(starts: IndexArray, places: IndexArray) -> IndexArray:
    """Return the piece that contains each place; `starts` as from `starts_of`."""
    found: IndexArray = np.searchsorted(starts[1:], places, side="right")
    return found


def read_pieces(tokens: Tokens, starts: IndexArray, sizes: IndexArray, width: int) -> IndexArray:
    """Return the pieces Int[B width], undefined beyond the size of a piece."""
    within = np.minimum(np.arange(width), sizes[:, None] - 1)  # [B width], never beyond the text
    np.maximum(within, 0, out=within)
    return tokens.read(starts[:, None] + within)


def framed(pieces: IndexArray, ends: IndexArray, length: int, vocabulary: Vocabulary) -> Packed:
    """Return rows [CLS] piece [SEP] padding, with [SEP] at the positions `ends`; all tokens are segment 0."""
    tokens = np.empty((len(pieces), length), dtype=np.int64)
    tokens[:, 0], tokens[:, -1] = vocabulary.cls_id, vocabulary.pad_id
    tokens[:, 1:-1] = pieces
    return closed(tokens, ends, np.zeros_like(tokens), vocabulary)


def closed(tokens: IndexArray, ends: IndexArray, segments: IndexArray, vocabulary: Vocabulary) -> Packed:
    """Put [SEP] at the positions `ends`, and padding after them."""
    real = np.arange(tokens.shape[1]) <= ends[:, None]
    tokens[~real] = vocabulary.pad_id
    tokens[np.arange(len(tokens)), ends] = vocabulary.sep_id
    return Packed(tokens, real, segments)
