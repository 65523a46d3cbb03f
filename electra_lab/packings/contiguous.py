"""Rows cut from consecutive documents."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import ceil
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from registry import Packed, Tokens, Vocabulary, packings

IndexArray = NDArray[np.int64]


def starts_of(sizes: NDArray[np.integer]) -> IndexArray:
    """Return the starts of consecutive pieces, and the end: [0, s0, s0 + s1, ...]."""
    starts = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, dtype=np.int64, out=starts[1:])
    return starts


def holder(starts: IndexArray, places: IndexArray) -> IndexArray:
    """Return the piece that contains each place; `starts` as from `starts_of`."""
    pieces: IndexArray = np.searchsorted(starts[1:], places, side="right")
    return pieces


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


@packings.register(
    "contiguous", crosses_documents=True, separates_documents=lambda *, attention: attention == "within_documents"
)
class Contiguous:
    """Consecutive documents, each followed by [SEP], cut into full rows `[CLS] ... [SEP]`.

    A document continues in the next row, so no token is lost and only the last row is padded by more than one position.
    A row that ends with a document ends with its [SEP], and has one position of padding. All tokens are segment 0.

    attention  full: a position attends to its whole row; within_documents: only to its document, and positions
               count from its beginning. Needs a backbone that can separate documents
    """

    def __init__(
        self,
        tokens: Tokens,
        length: int,
        vocabulary: Vocabulary,
        /,
        *,
        attention: Literal["full", "within_documents"] = "full",
    ) -> None:
        self.tokens, self.length, self.vocabulary = tokens, length, vocabulary
        self.room = length - 2
        self.separates = attention == "within_documents"

    @cached_property
    def documents(self) -> IndexArray:
        """The start of each document: 8 bytes for each, which plain training does not need."""
        return starts_of(self.tokens.lengths)

    def __len__(self) -> int:
        return ceil(len(self.tokens) / self.room)

    def rows(self, rows: IndexArray, /) -> Packed:
        starts = rows * self.room
        sizes = np.minimum(len(self.tokens) - starts, self.room)
        pieces = read_pieces(self.tokens, starts, sizes, self.room)
        # The [SEP] of a document that ends with the row closes the row.
        ends = sizes + (pieces[:, -1] != self.vocabulary.sep_id)
        packed = framed(pieces, ends, self.length, self.vocabulary)
        if not self.separates:
            return packed
        # Each row counts its documents from 0: [CLS] belongs to the first, the closing [SEP] to the last.
        first = holder(self.documents, starts)
        others = holder(self.documents, starts + sizes - 1) - first
        row = np.repeat(np.arange(len(rows)), others)
        document = first[row] + 1 + np.arange(len(row)) - (np.cumsum(others) - others)[row]
        begins = np.zeros_like(packed.tokens)
        begins[row, 1 + self.documents[document] - starts[row]] = 1
        return replace(packed, documents=np.where(packed.attention_mask, begins.cumsum(axis=1), -1))

    def source_document_ids(self, rows: IndexArray, /) -> IndexArray:
        return holder(self.documents, rows[:, None] * self.room + np.arange(-1, self.length - 1))
