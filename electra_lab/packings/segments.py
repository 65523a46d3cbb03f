"""Pairs of segments, as in google-research/electra and BERT."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from electra_lab.packings.contiguous import IndexArray, closed, holder, read_pieces, starts_of
from registry import Packed, Tokens, Vocabulary, packings

SHORTEST = 5  # positions of a short row, at least: google-research/electra's

Share = Annotated[float, Field(ge=0, le=1)]


@packings.register("segments")
class Segments:
    """Rows `[CLS] A [SEP] B [SEP]` with segments 0 and 1, as in google-research/electra; some are `[CLS] A [SEP]`.

    As there (build_pretraining_dataset.py), a row has one document; some rows have a single segment, and some are
    short, with a length from 5 to that of a row. A is filled with sentences up to half of the row; the sentence that
    crosses the half goes to A or to B with equal probability. Three things differ. Text beyond a row continues in the
    next one instead of being dropped. So a row ends when it is full, and B may end within a sentence. And sentences are
    not lines, which a store does not keep: they end at a full stop, a question mark and the like; without one, the row
    is cut in the middle. The end of a document that does not reach the half of a row is one segment.

    single  share of the rows that have one segment
    short   share of the rows that are short

    Random numbers depend only on the numbers of the document and of the row in it: rows are the same for every seed.
    Needs 8 bytes of memory for each row and 16 for each document.
    """

    def __init__(
        self, tokens: Tokens, length: int, vocabulary: Vocabulary, /, *, single: Share = 0.1, short: Share = 0.05
    ) -> None:
        self.tokens, self.length, self.vocabulary = tokens, length, vocabulary
        self.single, self.short = single, short
        ends = vocabulary.sentence_end
        self.sentence_end: NDArray[np.bool_] = (
            np.zeros(vocabulary.size, dtype=np.bool_) if ends is None else ends.cpu().numpy()
        )
        documents = starts_of(tokens.lengths)
        counts = np.zeros(len(tokens.lengths), dtype=np.int64)
        for _, document, _ in self._cuts():
            counts[document] += 1
        self.first = starts_of(counts)  # the first row of each document
        self.starts = np.empty(len(self) + 1, dtype=np.int64)  # the first token of each row
        for number, document, done in self._cuts():
            self.starts[self.first[document] + number] = documents[document] + done
        self.starts[-1] = documents[-1]

    def __len__(self) -> int:
        return int(self.first[-1])

    def _cuts(self) -> Iterator[tuple[int, IndexArray, IndexArray]]:
        """Yield for the first rows of all documents, the second rows, ...: the number of the row, the documents that
        have such a row, and the number of their tokens in earlier rows."""
        document = np.arange(len(self.tokens.lengths))
        load = self.tokens.lengths.astype(np.int64) - 1  # without the last [SEP], which closes a row
        done = np.zeros_like(document)
        number = 0
        while len(document):
            yield number, document, done
            target, pair, _ = self._plan(document, np.full_like(document, number))
            done = done + target - 2 - pair
            left = done < load
            document, load, done, number = document[left], load[left], done[left], number + 1

    def _plan(
        self, document: IndexArray, number: IndexArray
    ) -> tuple[IndexArray, NDArray[np.bool_], NDArray[np.bool_]]:
        """Draw the length that a row may have, whether it is to be a pair, and whether A may cross its half."""
        single, short, size, late = draw(document, number)
        shorter = SHORTEST + (size * (self.length - SHORTEST + 1)).astype(np.int64)
        return np.where(short < self.short, shorter, self.length), single >= self.single, late < 0.5

    def _pieces(self, rows: IndexArray) -> tuple[IndexArray, IndexArray, NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the number of tokens of each row without special ones, the number in its half, whether it is a pair,
        and whether A may cross the half."""
        document = holder(self.first, rows)
        closes = rows + 1 == self.first[document + 1]
        sizes = self.starts[rows + 1] - self.starts[rows] - closes
        target, pair, late = self._plan(document, rows - self.first[document])
        half = (target - 3) // 2
        return sizes, half, pair & (sizes > half), late

    def lengths(self, rows: IndexArray) -> IndexArray:
        """Return the number of real tokens in each row."""
        sizes, _, pair, _ = self._pieces(rows)
        return sizes + 2 + pair

    def rows(self, rows: IndexArray, /) -> Packed:
        sizes, half, pair, late = self._pieces(rows)
        pieces = read_pieces(self.tokens, self.starts[rows], sizes, self.length - 2)
        cuts = np.where(pair, self._cut(pieces, sizes, half, late), sizes)[:, None]
        places = np.arange(self.length)
        second = places > cuts + 1
        in_piece = np.clip(places - 1 - second, 0, pieces.shape[1] - 1)
        tokens = np.take_along_axis(pieces, in_piece, axis=1)
        tokens[:, 0] = self.vocabulary.cls_id
        np.put_along_axis(tokens, cuts + 1, self.vocabulary.sep_id, axis=1)
        ends = sizes + 1 + pair
        return closed(tokens, ends, (second & (places <= ends[:, None])).astype(np.int64), self.vocabulary)

    def source_document_ids(self, rows: IndexArray, /) -> IndexArray:
        return holder(self.first, rows)[:, None].repeat(self.length, axis=1)

    def _cut(self, pieces: IndexArray, sizes: IndexArray, half: IndexArray, late: NDArray[np.bool_]) -> IndexArray:
        """Return the size of A: before the sentence that crosses the half, or with it if `late`."""
        sizes_of_a = np.arange(1, pieces.shape[1] + 1)
        possible = self.sentence_end[pieces] & (sizes_of_a < sizes[:, None])
        before = sizes_of_a < half[:, None]
        under = np.where(possible & before, sizes_of_a, 0).max(axis=1)
        over = np.where(possible & ~before, sizes_of_a, self.length).min(axis=1)
        nothing_over = over == self.length
        crossing = np.where(nothing_over & (under == 0), sizes // 2, over)
        return np.where((under > 0) & (nothing_over | ~late), under, crossing)


def draw(document: IndexArray, number: IndexArray) -> NDArray[np.float64]:
    """Return four numbers in [0, 1) for each row, [4 B]: a hash of its coordinates (the finalizer of Steele et al.
    2014, "SplitMix")."""
    x = document.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(32)
    x = x * np.uint64(0xD1B54A32D192ED03) + number.astype(np.uint64) * np.uint64(4)
    x = x + np.arange(4, dtype=np.uint64)[:, None]
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    x ^= x >> np.uint64(31)
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53
