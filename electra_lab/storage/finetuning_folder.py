"""The folder of a fine-tuning.

finetuning.yaml  complete     source.yaml  as written     results.json  over all seeds     report.html
identity.json  the id of the fine-tuning, with which those of its seeds begin
seed-<n>/  a run directory of each seed, with predictions-<split>.jsonl, submission/, results.json once it is finished
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from electra_lab.storage.files import Hold, open_regular, read_as, reason, sha256
from electra_lab.storage.provenance import IDENTITY, id_by_place, refuse_other
from electra_lab.storage.run_directory import RunDirectory, is_run
from registry.errors import CheckpointError, command

MODEL = "model/MANIFEST.json"  # in the folder of a seed
_OTHER = "does not belong to the results of its seed."


class SplitResults(BaseModel):
    """The results on a split; `metrics` is empty if labels are not known."""

    examples: int
    metrics: dict[str, float | None]
    tables: list[dict[str, Any]] = []


class SeedResults(BaseModel):
    """The results of one seed, and the step whose weights were judged.

    run     id of the seed's run
    sha256  checksums of the predictions and of the model's manifest, by file
    lost    share of the examples that rows lack, by metric and split, that of training included
    """

    run: str
    seed: int
    step: int
    splits: dict[str, SplitResults]
    sha256: dict[str, str] = {}
    lost: dict[str, dict[str, float]] = {}


class FinetuningFolder(RunDirectory):
    """The folder of a fine-tuning with all its seeds, which are held with it."""

    def _hold(self, lock: Hold | None) -> None:
        super()._hold(lock)
        self._seeds: dict[int, RunDirectory] = {}

    def begin(self) -> None:
        """Write the id, unless it is there. Raises CheckpointError if seeds have begun, and it is gone."""
        if not (self.path / IDENTITY).is_file():
            if self.seeds():
                raise CheckpointError(f"{self.path / IDENTITY}: is missing. Restore it, or start a new fine-tuning.")
            self.write_json(IDENTITY, {"id": id_by_place(self.path) or uuid.uuid4().hex})

    def seed(self, seed: int) -> RunDirectory:
        directory = self._seeds.get(seed) or RunDirectory(self.path / f"seed-{seed}")
        if self.lock and seed not in self._seeds:
            directory._hold(self.lock)
            self._seeds[seed] = directory
        return directory

    def seeds(self) -> list[int]:
        """Return the seeds that have begun."""
        names = (path.name.removeprefix("seed-") for path in self.path.glob("seed-*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def results(self, seed: int) -> SeedResults | None:
        """Return the results of a seed, None if it is not finished. Raises CheckpointError."""
        directory = self.seed(seed)
        file = directory.path / "results.json"
        if not file.is_file():
            return None
        results = read_as(SeedResults, file, "Delete it and resume.")
        refuse_other(file, results.run, directory.provenance().id)
        return results

    def refuse_other_file(self, seed: int, name: str) -> None:
        """Raise CheckpointError for a file that is not the one that came with the results of a finished seed."""
        file, results = self.seed(seed).path / name, self.results(seed)
        if results and file.is_file() and sha256(file) != results.sha256.get(name):
            raise CheckpointError(f"{file}: {_OTHER} Delete results.json of the seed and resume.")

    def predictions(self, seed: int, split: str) -> list[dict[str, Any]]:
        """Raises CheckpointError."""
        file = self.seed(seed).path / f"predictions-{split}.jsonl"
        self.refuse_other_file(seed, file.name)
        try:
            with open_regular(file) as lines:  # strings in JSON may contain characters at which `splitlines` splits
                return [json.loads(line) for line in lines]
        except PermissionError as error:
            raise CheckpointError(f"{file}: cannot be read ({reason(error)}).") from None
        except (OSError, ValueError, RecursionError):
            cure = "Delete results.json next to it and resume."
            raise CheckpointError(f"{file}: is missing or damaged. {cure}") from None

    def values(self, split: str, metric: str) -> dict[int, float]:
        """Return a metric by seed, of the seeds that are finished and have it."""
        values = {}
        for seed in self.seeds():
            results = self.results(seed)
            if results and split in results.splits:
                values[seed] = results.splits[split].metrics.get(metric)
        return {seed: value for seed, value in values.items() if value is not None}

    def judged_by(self, metric: str) -> dict[int, float]:
        """Return a metric by seed on the first held-out split that has it, even if it has no number there."""
        finished = (self.results(seed) for seed in self.seeds())
        first = next(filter(None, finished), None)
        for split, of_split in first.splits.items() if first else ():
            if metric in of_split.metrics:
                return self.values(split, metric)
        return {}


def is_finetuning(path: Path) -> bool:
    return (path / "finetuning.yaml").is_file()


def is_seed(path: Path) -> bool:
    """Return True for the run directory of one seed of a fine-tuning."""
    path = Path(os.path.realpath(path))  # `.` has no name; resolve() refuses links in a circle
    return is_run(path) and is_finetuning(path.parent) and path.name.removeprefix("seed-").isdecimal()


def predict_command(model: object, needs: Sequence[str]) -> str:
    """Return the command that predicts for a new item, which has the fields `needs`: one, or two texts."""
    second = (f"--{needs[1]}", "TEXT") if len(needs) > 1 else ()
    return command("predict", model, "QUESTION" if needs[0] == "question" else "TEXT", *second)
