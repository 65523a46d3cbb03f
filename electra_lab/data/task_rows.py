"""A task's rows as batches: padded to the longest of each batch, with their labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from electra_lab.data.rows import IndexArray, Rows
from registry import Batch, Packed, Row
from registry.errors import DataError

IGNORED = -100  # the label of padding, as in torch's cross-entropy
WIDTHS = 8  # of batches whose steps may be recorded


class TaskRows(Rows):
    """Rows in the order of training, or the longest first. An implementation of registry.contracts.Batches.

    In evaluation a row's example id is its place in `rows`.

    few_widths  batches are as wide as their longest row, rounded up to an eighth of the longest of all, so that eight
                recordings of a step serve all of them
    """

    def __init__(self, rows: Sequence[Row], *, group_by_length: bool = False, few_widths: bool = False) -> None:
        self._rows = _Ragged(rows, WIDTHS if few_widths else None)
        super().__init__(self._rows, group_by_length=group_by_length)
        self.length = int(self._rows.sizes.max())

    @property
    def tokens(self) -> int:
        return int(self._rows.sizes.sum())

    def batch(self, rows: IndexArray, example_ids: IndexArray, device: torch.device, width: int | None = None) -> Batch:
        labels = {name: torch.from_numpy(values).to(device) for name, values in self._rows.labels(rows).items()}
        return replace(super().batch(rows, example_ids, device), labels=labels)

    def in_order(self, size: int, device: torch.device, *, part: slice = slice(None)) -> Iterator[Batch]:
        """Yield all rows once, the longest first, so that little is padded and a lack of memory shows at once."""
        order = np.argsort(-self._rows.sizes, kind="stable")
        for start in range(0, self.number, size)[part]:
            rows = order[start : start + size]
            yield self.batch(rows, rows, device)

    def example_ids(self, places: Sequence[int]) -> list[int]:
        return list(places)


class _Ragged:
    """Rows of different lengths, one after the other; a packing whose batches have at most `widths` widths."""

    def __init__(self, rows: Sequence[Row], widths: int | None = None) -> None:
        self.sizes = np.array([len(row.tokens) for row in rows], dtype=np.int64)
        longest = int(self.sizes.max())
        self._multiple = -(-longest // widths) if widths else 1
        self._begins = self.sizes.cumsum() - self.sizes
        self._tokens, self._segments = _joined(row.tokens for row in rows), _joined(row.segments for row in rows)
        self._of_rows: dict[str, NDArray[Any]] = {}
        self._of_tokens: dict[str, NDArray[Any]] = {}
        names = {tuple(sorted(row.labels)) for row in rows}
        if len(names) > 1:
            raise DataError("some examples have labels and others have none. Leave out those without.")
        for name in next(iter(names), ()):
            values = [row.labels[name] for row in rows]
            if isinstance(values[0], Sequence):
                self._of_tokens[name] = _joined(values)
            else:
                self._of_rows[name] = np.array(values)

    def __len__(self) -> int:
        return len(self.sizes)

    def lengths(self, rows: IndexArray) -> IndexArray:
        lengths: IndexArray = self.sizes[rows]
        return lengths

    def rows(self, rows: IndexArray) -> Packed:
        tokens, real = self._padded(self._tokens, rows, 0)
        return Packed(tokens, real, self._padded(self._segments, rows, 0)[0])

    def labels(self, rows: IndexArray) -> dict[str, NDArray[Any]]:
        of_tokens = {name: self._padded(values, rows, IGNORED)[0] for name, values in self._of_tokens.items()}
        return {**{name: values[rows] for name, values in self._of_rows.items()}, **of_tokens}

    def _padded(self, values: NDArray[Any], rows: IndexArray, padding: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        sizes = self.sizes[rows]
        places = np.arange(-(-sizes.max() // self._multiple) * self._multiple)[: self.sizes.max()]
        real = places < sizes[:, None]
        at = np.minimum(self._begins[rows][:, None] + places, len(values) - 1)
        return np.where(real, values[at], padding), real


def _joined(parts: Any) -> NDArray[Any]:
    return np.array(list(chain.from_iterable(parts)))
