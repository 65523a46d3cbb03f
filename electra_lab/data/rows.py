"""The batches that training and evaluation read: a stream of tokens, rows of its packing, and their order."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, lru_cache
from math import ceil, isqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from registry import Batch, BatchSizes, Packing
from registry.errors import CheckpointError

IndexArray = NDArray[np.int64]

ROUNDS = 8  # of the Feistel network, an even number
REBUILD = "Rebuild it: electra-lab prepare FILE --rebuild"
WINDOW = 50  # batches whose rows are chosen at a time, and grouped by length, as in transformers


class Stream:
    """The tokens of a split, uint16 or uint32, from its memory-mapped shards. A registry.contracts.Tokens."""

    def __init__(self, shards: Sequence[NDArray[Any]], lengths: Sequence[Path], words: Sequence[Path] = ()) -> None:
        self.shards, self._lengths, self._words = [shard for shard in shards if len(shard)], lengths, words
        self._files = [shard.filename if isinstance(shard, np.memmap) else None for shard in self.shards]
        self._opened = [*map(_size_and_time, self._files)]
        self.ends = np.cumsum(list(map(len, self.shards)))

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    @cached_property
    def lengths(self) -> NDArray[np.uint32]:
        """The number of tokens of each document, [SEP] included."""
        return np.concatenate([np.load(file) for file in self._lengths])

    @cached_property
    def words(self) -> NDArray[np.uint32]:
        """The number of words of each document."""
        return np.concatenate([np.load(file) for file in self._words])

    def read(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens at the places, in the shape of `places`.

        Raises CheckpointError if a file has changed: a process that reads beyond the end of one is killed by SIGBUS.
        """
        if len(self.shards) == 1:
            self._refuse_changed(0)
            return self.shards[0][places].astype(np.int64)
        tokens = np.empty(places.shape, np.int64)
        numbers = np.searchsorted(self.ends, places, side="right")  # of the shards
        for number in np.unique(numbers):
            self._refuse_changed(number)
            inside, shard = numbers == number, self.shards[number]
            tokens[inside] = shard[places[inside] - (self.ends[number] - len(shard))]
        return tokens

    def _refuse_changed(self, number: int) -> None:
        if _size_and_time(file := self._files[number]) != self._opened[number]:
            raise CheckpointError(f"{file}: the token store has changed while it was in use. {REBUILD}, then resume.")


def _size_and_time(file: str | None) -> tuple[int, int] | None:
    """Return the size of a shard's file and the time of its last change; None if it has none, or it is gone."""
    if file is None or not os.path.exists(file):
        return None
    status = os.stat(file)
    return status.st_size, status.st_mtime_ns


class Rows:
    """The rows of a packing, in random order for training. An implementation of registry.contracts.Batches.

    group_by_length  batches have rows of similar lengths, and are cut to their longest row, rounded up to an eighth of
                     the length. Each row still occurs once per epoch. Needs a packing with `lengths`
    """

    def __init__(self, packing: Packing, *, group_by_length: bool = False) -> None:
        self.packing, self.group_by_length = packing, group_by_length
        self.total = self.number = len(packing)
        self.length = packing.rows(np.zeros(1, dtype=np.int64)).tokens.shape[1]
        # The last window: (seed, number, size), rows and widths of its batches.
        self._window: tuple[object, list[IndexArray], IndexArray | None] | None = None

    def __len__(self) -> int:
        return self.number

    def sample(self, tokens: int) -> Rows:
        """Return rows of about `tokens` positions, evenly spread over all, or all rows if there are fewer."""
        sampled = copy(self)
        sampled.number, sampled._window = min(self.number, -(-tokens // self.length)), None
        return sampled

    def batch(self, rows: IndexArray, example_ids: IndexArray, device: torch.device, width: int | None = None) -> Batch:
        """Return rows of the packing, cut to `width`; `example_ids` are their indices in the global batch."""
        packed, counts = self.packing.rows(rows), None
        if packed.documents is not None:
            counts = document_counts(packed.documents, packed.attention_mask)
        elif device.type == "cuda" and not packed.attention_mask[:, :width].all():  # for a kernel that CUDA alone has
            counts = piece_counts(packed.attention_mask)

        def moved(array: NDArray[Any]) -> torch.Tensor:
            return _moved(np.ascontiguousarray(array if width is None else array[:, :width]), device)

        return Batch(
            tokens=moved(packed.tokens),
            attention_mask=moved(packed.attention_mask),
            segments=moved(packed.segments),
            example_ids=_moved(example_ids, device),
            attention_document_ids=None if packed.documents is None else moved(packed.documents),
            document_counts=counts,
            full=bool(packed.attention_mask[:, :width].all()),
        )

    def training_batch(
        self, seed: int, step: int, size: int | BatchSizes, device: torch.device, *, part: slice = slice(None)
    ) -> Batch:
        """Return the rows `part` of the global batch of a step, and read no others.

        The global batch is a function of (seed, step, size): rows in the order of their epoch, one epoch after the
        other.
        """
        rows, width = self._global(seed, step, size)
        batch = self.batch(rows[part], np.arange(len(rows))[part], device, width)
        return replace(batch, row_ids=_moved(rows[part], device))

    def in_order(self, size: int, device: torch.device, *, part: slice = slice(None)) -> Iterator[Batch]:
        """Yield all rows once, for evaluation.

        A row's example id is its number in the packing, so that it depends neither on the batch size nor on the sample.
        Batches have the source document of each position if the packing provides it; training does not need it.
        """
        for start in range(0, self.number, size)[part]:
            rows = self._spread(np.arange(start, min(start + size, self.number)))
            batch = self.batch(rows, rows, device)
            if hasattr(self.packing, "source_document_ids"):
                batch = replace(
                    batch, source_document_ids=torch.from_numpy(self.packing.source_document_ids(rows)).to(device)
                )
            yield batch

    def example_ids(self, places: Sequence[int]) -> list[int]:
        """Return the example ids that `in_order` gives to the rows at these places."""
        ids: list[int] = self._spread(np.array(places, dtype=np.int64)).tolist()
        return ids

    def _spread(self, numbers: IndexArray) -> IndexArray:
        return numbers if self.number == self.total else numbers * self.total // self.number

    def _global(self, seed: int, step: int, size: int | BatchSizes) -> tuple[IndexArray, int | None]:
        """Return the rows of a global batch, and the width to which they are cut."""
        window, at = divmod(step, WINDOW)
        if self._window is None or self._window[0] != (seed, window, size):
            self._window = (seed, window, size), *self._batches(seed, window, size)
        _, rows, widths = self._window
        return rows[at], None if widths is None else int(widths[at])

    def windows(self, seed: int, window: int, size: int | BatchSizes) -> list[IndexArray]:
        """Return the rows of each training batch of WINDOW steps, from step window * WINDOW."""
        return self._batches(seed, window, size)[0]

    def _batches(self, seed: int, window: int, size: int | BatchSizes) -> tuple[list[IndexArray], IndexArray | None]:
        """Return the rows of each of WINDOW global batches, and their widths."""
        # Batches follow one another through the permutations of all epochs.
        sizes = BatchSizes(size) if isinstance(size, int) else size
        ends = np.array([sizes.before(window * WINDOW + step) for step in range(WINDOW + 1)])
        begins, places = ends[:-1] - ends[0], np.arange(ends[0], ends[-1])
        epochs, offsets = places // self.number, places % self.number
        rows = self._spread(permuted(seed, epochs, offsets, self.number))
        if not self.group_by_length:
            return np.split(rows, begins[1:]), None
        # Sort rows within each epoch: batches are filled by length, and ordered at random.
        lengths = self.packing.lengths(rows)  # type: ignore[attr-defined]
        order = permuted(seed, np.full(WINDOW, -1 - window), np.arange(WINDOW), WINDOW).repeat(np.diff(ends))
        by_length, by_order = np.lexsort((lengths, epochs)), np.lexsort((order, epochs))
        rows[by_order], lengths[by_order] = rows[by_length], lengths[by_length]
        # Cut each batch to its longest row, rounded up.
        unit, longest = ceil(self.length / 8), np.maximum.reduceat(lengths, begins)
        widths = np.minimum(-(-longest // unit) * unit, self.length)
        return np.split(rows, begins[1:]), widths


def permuted(seed: int, epochs: IndexArray, offsets: IndexArray, number: int) -> IndexArray:
    """Return the elements at some offsets of a random permutation of range(number), one for each (seed, epoch).

    A Feistel network on pairs of digits (Black and Rogaway 2002, "Ciphers with arbitrary finite domains") permutes a
    slightly larger range; elements outside are permuted again. So no permutation is ever held in memory.
    """
    low = isqrt(number - 1) + 1
    high = -(-number // low)  # low * high is at least `number`, and above it by less than `low`
    different, which = np.unique(epochs, return_inverse=True)
    keys = np.array([_keys(seed, int(epoch)) for epoch in different], np.uint64).reshape(-1, ROUNDS)
    keys = keys.T[:, which]  # [ROUNDS offsets]

    def permute(x: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = x // _u(high), x % _u(high)
        for i in range(0, ROUNDS, 2):
            left = (left + _hash(right, keys[i])) % _u(low)
            right = (right + _hash(left, keys[i + 1])) % _u(high)
        return left * _u(high) + right

    x = permute(offsets.astype(np.uint64), keys)
    while len(outside := np.flatnonzero(x >= number)):
        x[outside] = permute(x[outside], keys[:, outside])
    return x.astype(np.int64)


_u = np.uint64


def _hash(x: NDArray[np.uint64], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 62 bits, so that a sum with less than 2^32 does not wrap."""
    x = (x ^ key) * _u(0xBF58476D1CE4E5B9)
    x ^= x >> _u(32)
    x *= _u(0x94D049BB133111EB)
    return x >> _u(2)


@lru_cache(maxsize=1024)
def _keys(seed: int, epoch: int) -> NDArray[np.uint64]:
    key = hashlib.blake2b(f"order {seed} {epoch}".encode(), digest_size=8 * ROUNDS).digest()
    return np.frombuffer(key, "<u8").astype(np.uint64)


def document_counts(documents: IndexArray, real: NDArray[np.bool_]) -> torch.Tensor | None:
    """Return how many documents and pieces of padding each row has, or None if a document continues after another."""
    new = np.ones(documents.shape, dtype=bool)
    new[:, 1:] = (documents[:, 1:] != documents[:, :-1]) | (real[:, 1:] != real[:, :-1])
    rows, places = np.nonzero(new & real)
    seen = set(zip(rows.tolist(), documents[rows, places].tolist(), strict=True))
    if len(seen) < len(rows):
        return None
    return torch.from_numpy(new.sum(axis=1))


def piece_counts(real: NDArray[np.bool_]) -> torch.Tensor:
    """Return how many pieces of text and of padding each row has: two at least, so that most batches have one sum."""
    changes = (real[:, 1:] != real[:, :-1]).sum(axis=1)
    return torch.from_numpy(np.maximum(changes + 1, 2))


def _moved(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy to the device without waiting, which on CUDA needs pinned memory."""
    tensor = torch.from_numpy(array)
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)
