"""An ablation's folder: what is written where, what is done and what is missing.

ablation.yaml  as written      plan.json  all cells       plan/<id>.yaml  the experiment of each, filled in
cells/<id>/    run directories, with measures.json; also of the reference generators, which are no cells
shared/        what measures made for all cells           failed/<id>.json   why a cell is not done
damaged/       what could not be used any more
logs/<id>.txt  what a cell said                           report.html, table.csv, table.md
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from electra_lab.runs.directory import RunDirectory, disk, write_whole
from registry.errors import CheckpointError, ConfigError

ROOMS = ("cells", "plan", "failed", "logs", "shared", "claims")
OTHERS = ("ablation.yaml", "report.html", "table.csv", "table.md", "slurm", "damaged")  # not there from the start


class Folder:
    """An ablation's folder. Raises CheckpointError where it cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def plan(self) -> dict[str, Any]:
        plan: dict[str, Any] = self.read("plan.json")
        return plan

    def run(self, id: str) -> RunDirectory:
        return RunDirectory(self.path / "cells" / id)

    def experiment(self, id: str) -> Path:
        return self.path / "plan" / f"{id}.yaml"

    def trained(self, id: str) -> bool:
        return self.run(id).finished() and (self.path / "cells" / id / "report.html").is_file()

    def measured(self, id: str) -> dict[str, dict[str, float]]:
        """The numbers of a cell, by measure as the plan names it with its options. What cannot be read is measured
        again."""
        try:
            found = self.read(f"cells/{id}/measures.json")
        except CheckpointError:
            return {}
        return {k: v for k, v in found.items() if isinstance(v, dict)} if isinstance(found, dict) else {}

    def missing(self, id: str, plan: dict[str, Any]) -> list[str]:
        """What a cell still needs: the measures that it lacks, as the plan names them, or before them `training`.

        A cell that is measured, and a reference that every measure has used, is done, whatever is left of it.
        """
        if id in {each["reference"] for each in plan["measures"]}:
            return [] if self.used(id, plan) or self.trained(id) else ["training"]
        measured = self.measured(id)
        lacking = [each["folder"] for each in plan["measures"] if each["folder"] not in measured]
        return ["training"] if lacking and not self.trained(id) else lacking

    def used(self, reference: str, plan: dict[str, Any]) -> bool:
        """Whether every measure that wants this run has made of it what all cells share."""
        wanting = [each for each in plan["measures"] if each["reference"] == reference]
        return all((self.path / "shared" / each["folder"]).is_dir() for each in wanting)

    def ready(self, measure: dict[str, Any]) -> bool:
        """Whether a measure of the plan can be taken: its reference, if it has one, is trained, or was used before."""
        reference = measure["reference"]
        return not reference or (self.path / "shared" / measure["folder"]).is_dir() or self.trained(reference)

    def note_failure(self, id: str, error: str | None, attempts: int) -> None:
        """Why a cell is not done; None forgets it."""
        if error is not None:
            self.write(f"failed/{id}.json", json.dumps({"error": error, "attempts": attempts}, indent=1) + "\n")
        else:
            (self.path / "failed" / f"{id}.json").unlink(missing_ok=True)

    def read(self, name: str) -> Any:
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{self.path / name}: cannot be read ({error}). Remove it, and the same command makes it anew."
            ) from None

    def write(self, name: str, text: str) -> None:
        """Whole or not at all, however many processes write it at once."""
        write_whole(self.path / name, text)

    @contextmanager
    def claimed(self, name: str, *, wait: bool = False) -> Iterator[bool]:
        """Whether this process has `name` to itself, while it lasts. The claim goes with the process."""
        with disk(self.path):
            lock = (self.path / "claims" / name).open("a")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                mine = True
            except BlockingIOError:
                mine = False
            except OSError as error:
                raise ConfigError(
                    f"{self.path}: this file system knows no locks ({error.strerror}), by which cells are claimed. "
                    "Choose another folder with --out; see docs/clusters.md."
                ) from None
            yield mine

    def is_claimed(self, name: str) -> bool:
        """Whether another process has it just now."""
        with self.claimed(name) as free:
            return not free

    def refuse_other(self, ids: set[str]) -> None:
        """Raises ConfigError if the folder holds something else than cells of this plan."""
        path = self.path
        try:
            if path.exists() and not path.is_dir():
                raise ConfigError(f"--out {path}: is no folder.")
            there = {each.name for each in path.iterdir() if each.suffix != ".part"} if path.exists() else set()
            cells = {each.name for each in (path / "cells").iterdir()} if "cells" in there else set()
        except OSError as error:
            raise ConfigError(f"--out {path}: cannot be read ({error.strerror}).") from None
        if "plan.json" in there:
            try:
                cells = {str(cell["id"]) for cell in self.plan["cells"]}
            except (KeyError, TypeError):
                raise ConfigError(f"--out {path}: its plan.json is of no ablation. Choose another folder.") from None
        elif not there <= {*ROOMS, *OTHERS}:  # else it was stopped before the plan was written
            raise ConfigError(f"--out {path}: is not empty and holds no ablation. Choose another folder.")
        if strange := sorted(each for each in cells - ids if not each.startswith("reference-of-")):
            raise ConfigError(
                f"--out {path}: holds another plan: its cell {strange[0]} (and {len(strange) - 1} more) is none of "
                "this one. Seeds and variants may be added to a plan; for anything else choose another folder."
            )


def make(path: Path) -> Folder:
    """The folder, made if it is not there. Raises ConfigError."""
    try:
        for name in ROOMS:
            (path / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {path}: cannot be created ({error.strerror}).") from None
    if not os.access(path, os.W_OK):
        raise ConfigError(f"--out {path}: may not be written to.")
    return Folder(path)
