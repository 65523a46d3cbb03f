"""A frozen generator's draws, kept on disk for later runs: the cache of Fast-ELECTRA (Dong et al. 2023)."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from electra_lab.training.device import Precision, autocast
from electra_lab.training.random import Streams
from electra_lab.training.step import Learner
from registry import Batch
from registry.errors import DataError

FORMAT = 1  # raise it when the same inputs would give other draws


class Draws:
    """The draws of every training row, in the order in which they are read, in one file that runs share.

    The file is named by a hash of everything that the draws depend on, the generator's weights included. A row has K
    tokens, each stored as its id plus one, so that a row that was not written, or only in part by a process that was
    killed, has a zero in it and is drawn again. Writers need no lock: two that draw the same row write the same bytes.

    folder    of the files, created at the first step
    identity  everything but the weights, as JSON values
    slots     K, masked positions per row
    size      of the vocabulary
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], slots: int, size: int) -> None:
        self.folder, self.identity = folder, {"format": FORMAT, **identity}
        self.slots, self.size = slots, size
        self.type = np.dtype("<u2" if size < 1 << 16 else "<u4")
        self.row_bytes = slots * self.type.itemsize
        self._file: BinaryIO | None = None

    def add_to(
        self, batch: Batch, first: int, learner: Learner, seed: int, step: int, rows: int, precision: Precision
    ) -> Batch:
        """Return the batch with its draws, [B K], as the label `draws`. Raises DataError.

        first  the number of training rows before the batch
        rows   of a micro-batch: matrix products of another number may round otherwise
        """
        objective: Any = learner.objective
        file = self._open(objective.generator)
        found = self._read(file, first, len(batch))
        if found is None:
            learner.at_step(seed, step)  # temperatures that change
            drawn = []
            for start in range(0, len(batch), rows):
                part = batch[start : start + rows]
                with torch.no_grad(), autocast(batch.tokens.device, precision):
                    drawn.append(objective.draws(part, Streams(seed, step, part.example_ids)))
            found = torch.cat(drawn).cpu().numpy()
            self._write(file, first, found)
        return replace(batch, labels={**batch.labels, "draws": torch.from_numpy(found).to(batch.tokens.device)})

    def _read(self, file: BinaryIO, first: int, rows: int) -> NDArray[np.int64] | None:
        """Return the ids of some rows, None unless all are there."""
        with self._disk():
            file.seek(first * self.row_bytes)
            data = file.read(rows * self.row_bytes)
        if len(data) < rows * self.row_bytes:
            return None
        kept = np.frombuffer(data, self.type).reshape(rows, self.slots).astype(np.int64)
        return kept - 1 if kept.min() > 0 and kept.max() <= self.size else None

    def _write(self, file: BinaryIO, first: int, ids: NDArray[np.int64]) -> None:
        """Keep the ids of some rows; rows that were cut to their tokens have fewer slots."""
        kept = np.ones((len(ids), self.slots), self.type)
        kept[:, : ids.shape[1]] = ids + 1
        with self._disk():
            file.seek(first * self.row_bytes)
            file.write(kept.tobytes())

    def _open(self, generator: nn.Module) -> BinaryIO:
        """Return the file of a generator, whose weights do not change."""
        if self._file is not None:
            return self._file
        digest = hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode())
        for name, tensor in generator.state_dict().items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        path = self.folder / f"{digest.hexdigest()[:16]}.draws"
        with self._disk():
            self.folder.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".json").write_text(json.dumps(self.identity, indent=1), encoding="utf-8")
            path.touch()
            self._file = path.open("r+b", buffering=0)
        return self._file

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Turn errors of the file system into DataError."""
        try:
            yield
        except OSError as error:
            reason = f"the draws cannot be kept there ({error.strerror or error})"
            raise DataError(f"{self.folder}: {reason}. Make room, or remove objective.cache.") from None
