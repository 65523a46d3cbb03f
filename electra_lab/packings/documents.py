"""Rows with one document each."""

from __future__ import annotations

import numpy as np

from electra_lab.packings.contiguous import IndexArray, framed, holder, read_pieces, starts_of
from registry import Packed, Tokens, Vocabulary, packings


@packings.register("documents")
class Documents:
    """Rows `[CLS] ... [SEP]` with one document each; the last row of a document is padded.

    A long document continues in the next rows, so no token is lost. All tokens are segment 0. Needs 16 bytes of memory
    for each document.
    """

    def __init__(self, tokens: Tokens, length: int, vocabulary: Vocabulary, /) -> None:
        self.tokens, self.length, self.vocabulary = tokens, length, vocabulary
        self.room = length - 2
        lengths = tokens.lengths.astype(np.int64)
        self.starts = starts_of(lengths)
        # The first row of each document; its [SEP] takes no room.
        self.first = starts_of(np.maximum(-(-(lengths - 1) // self.room), 1))

    def __len__(self) -> int:
        return int(self.first[-1])

    def _pieces(self, rows: IndexArray) -> tuple[IndexArray, IndexArray]:
        """Return the start of the piece in each row, and its size without [SEP]."""
        document = holder(self.first, rows)
        starts = self.starts[document] + (rows - self.first[document]) * self.room
        return starts, np.minimum(self.starts[document + 1] - 1 - starts, self.room)

    def lengths(self, rows: IndexArray) -> IndexArray:
        """Return the number of real tokens in each row."""
        return self._pieces(rows)[1] + 2

    def rows(self, rows: IndexArray, /) -> Packed:
        starts, sizes = self._pieces(rows)
        return framed(read_pieces(self.tokens, starts, sizes, self.room), sizes + 1, self.length, self.vocabulary)

    def source_document_ids(self, rows: IndexArray, /) -> IndexArray:
        return holder(self.first, rows)[:, None].repeat(self.length, axis=1)
