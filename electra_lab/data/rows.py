"""Rows of a fixed length cut from a token stream, and the order in which they are read."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from registry.contracts import Batch, Vocabulary

if TYPE_CHECKING:
    from numpy.typing import NDArray

    IndexArray = NDArray[np.int64]


class Rows:
    """A stream of documents, each closed by [SEP], as rows `[CLS] ... [SEP]` of `length` tokens.

    Documents follow one another in a row and are carried on in the next, so no token is lost. A row that ends with a
    document has its [SEP] already and one position of padding; the stream's last row is padded to the length. All
    tokens are segment 0.
    """

    def __init__(self, stream: NDArray[Any], length: int, vocabulary: Vocabulary) -> None:
        self.stream, self.length, self.vocabulary = stream, length, vocabulary
        self.room = length - 2

    def __len__(self) -> int:
        return math.ceil(len(self.stream) / self.room)

    def batch(self, rows: IndexArray, examples: IndexArray, device: torch.device) -> Batch:
        """The given rows; `examples` are their indices in the global batch."""
        pad, sep = self.vocabulary.pad_id, self.vocabulary.sep_id
        tokens = np.full((len(rows), self.length), pad, dtype=np.int64)
        tokens[:, 0] = self.vocabulary.cls_id
        real = np.zeros((len(rows), self.length), dtype=np.bool_)
        for place, row in enumerate(rows):
            piece = self.stream[row * self.room : (row + 1) * self.room]
            end = 1 + len(piece)
            tokens[place, 1:end] = piece
            if piece[-1] != sep:  # else the row ends with a document, and its [SEP] is there already
                tokens[place, end] = sep
                end += 1
            real[place, :end] = True
        on_device = torch.from_numpy(tokens).to(device, non_blocking=True)
        return Batch(
            tokens=on_device,
            mask=torch.from_numpy(real).to(device, non_blocking=True),
            segments=torch.zeros_like(on_device),
            examples=torch.from_numpy(examples).to(device, non_blocking=True),
        )

    def training_batch(self, seed: int, step: int, size: int, device: torch.device) -> Batch:
        """The global batch of a step: the rows in the order of their epoch, epochs following without a gap."""
        places = np.arange(step * size, (step + 1) * size)
        epochs, offsets = places // len(self), places % len(self)
        rows = np.array([_order(seed, int(e), len(self))[o] for e, o in zip(epochs, offsets, strict=True)])
        return self.batch(rows, np.arange(size), device)

    def in_order(self, size: int, device: torch.device) -> Iterator[Batch]:
        """All rows once, for evaluation; a row's example index is its own, so batch size changes nothing."""
        for start in range(0, len(self), size):
            rows = np.arange(start, min(start + size, len(self)))
            yield self.batch(rows, rows, device)


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, rows: int) -> IndexArray:
    """A permutation that depends on (seed, epoch) alone. RandomState's streams are frozen across numpy versions."""
    key = hashlib.blake2b(f"order {seed} {epoch}".encode(), digest_size=16).digest()
    return np.random.RandomState(np.frombuffer(key, np.uint32)).permutation(rows)
