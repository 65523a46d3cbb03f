"""Rows cut from consecutive documents."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import ceil
from typing import Literal

import numpy as np

from electra_lab.packings._pieces import IndexArray, framed, holder, read_pieces, starts_of
from registry import Packed, Tokens, Vocabulary, packings


@packings.register(
    "contiguous", crosses_documents=True, separates_documents=lambda *, attention: attention == "within_documents"
)
class Contiguous:
    """Consecutive documents, each followed by [SEP], cut into full rows `[CLS] ... [SEP]`.

    A document continues in the next row, so no token is lost and only the last row is padded by more than one position.
    A row that ends with a document ends with its [SEP], and has one position of padding. All tokens are segment 0.

    attention  full: a position attends to its whole row; within_documents: only to its own document, and positions
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
