"""Rows of a fixed length, cut from a token stream, and the order in which they are read."""

import hashlib
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from registry import Batch, Vocabulary

IndexArray = NDArray[np.int64]


class Rows:
    """A stream of documents, each followed by [SEP], as rows `[CLS] ... [SEP]` of `length` tokens.

    Documents follow one another in a row and continue in the next, so no token is lost. A row that ends with a document
    has its [SEP] already and one position of padding; the stream's last row is padded to the length. All tokens are
    segment 0. An implementation of registry.contracts.Batches.
    """

    def __init__(self, stream: NDArray[Any], length: int, vocabulary: Vocabulary) -> None:
        self.stream, self.length, self.vocabulary = stream, length, vocabulary
        self.room = length - 2

    def __len__(self) -> int:
        return math.ceil(len(self.stream) / self.room)

    def batch(self, rows: IndexArray, example_ids: IndexArray, device: torch.device) -> Batch:
        """Return the given rows; `example_ids` are their indices in the global batch."""
        pad, sep = self.vocabulary.pad_id, self.vocabulary.sep_id
        tokens = np.full((len(rows), self.length), pad, dtype=np.int64)
        tokens[:, 0] = self.vocabulary.cls_id
        real = np.zeros((len(rows), self.length), dtype=np.bool_)
        for place, row in enumerate(rows):
            piece = self.stream[row * self.room : (row + 1) * self.room]
            end = 1 + len(piece)
            tokens[place, 1:end] = piece
            if piece[-1] != sep:  # otherwise the row ends with a document, whose [SEP] is already there
                tokens[place, end] = sep
                end += 1
            real[place, :end] = True
        on_device = torch.from_numpy(tokens).to(device, non_blocking=True)
        return Batch(
            tokens=on_device,
            attention_mask=torch.from_numpy(real).to(device, non_blocking=True),
            segments=torch.zeros_like(on_device),
            example_ids=torch.from_numpy(example_ids).to(device, non_blocking=True),
        )

    def training_batch(self, seed: int, step: int, size: int, device: torch.device) -> Batch:
        """Return the global batch of a step: rows in the order of their epoch, one epoch directly after the other."""
        places = np.arange(step * size, (step + 1) * size)
        epochs, offsets = places // len(self), places % len(self)
        rows = np.array([_order(seed, int(e), len(self))[o] for e, o in zip(epochs, offsets, strict=True)])
        return self.batch(rows, np.arange(size), device)

    def in_order(self, size: int, device: torch.device) -> Iterator[Batch]:
        """Yield all rows once, for evaluation. A row's example id is its own index: the batch size changes nothing."""
        for start in range(0, len(self), size):
            rows = np.arange(start, min(start + size, len(self)))
            yield self.batch(rows, rows, device)


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, rows: int) -> IndexArray:
    """Return a permutation that depends on (seed, epoch) alone. RandomState's streams never change."""
    key = hashlib.blake2b(f"order {seed} {epoch}".encode(), digest_size=16).digest()
    return np.random.RandomState(np.frombuffer(key, np.uint32)).permutation(rows)
