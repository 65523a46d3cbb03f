"""The folder of an ablation: its files, and the state of each cell.

ablation.yaml  extends the file as written, with the changes of --set      files/  that file, and those that it needs
plan.json  all cells           plan/<id>.yaml  the complete experiment of each      plugins/  copies
cells/<id>/    run directories, or folders of fine-tunings, with measures.json; also of references
shared/        data of measures, shared by all cells      failed/<id>.json   why a cell is not done
damaged/       what could no longer be used
study.log      trials of a search, in Optuna's journal      confirm/       ablations of its best trials and the base
logs/<id>.txt  the output of a cell                       report.html, table.csv, table.md
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from pydantic import BaseModel

from electra_lab.storage.files import Hold, disk, lock, new_file, read_as, refuse_unusable, write_whole
from electra_lab.storage.finetuning_folder import FinetuningFolder
from electra_lab.storage.plan import Measures, Plan, PlannedMeasure, read_measures
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import CheckpointError, ConfigError

ROOMS = ("cells", "plan", "failed", "logs", "shared", "claims")
# Not there from the start:
OTHERS = (
    "ablation.yaml", "files", "plugins", "report.html", "measured", "table.csv", "table.md", "slurm", "damaged",
    "downstream", "study.log", "confirm",
)  # fmt: skip


class Failure(BaseModel):
    """failed/<id>.json: the reason why a cell is not done, and the number of attempts."""

    error: str
    attempts: int = 1


class AblationFolder:
    """The folder of an ablation. Raises CheckpointError if it cannot be read or written."""

    def __init__(self, path: Path) -> None:
        refuse_unusable(path)
        self.path = path
        self._claims = dict[str, Hold]()

    @classmethod
    def create(cls, path: Path) -> Self:
        """Create the folder if it is not there. Raises ConfigError."""
        made = cls(path)
        try:
            for name in ROOMS:
                (path / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out {path}: cannot be created ({error.strerror}).") from None
        if not os.access(path, os.W_OK):
            raise ConfigError(f"--out {path}: is not writable.")
        return made

    @property
    def plan(self) -> Plan:
        """Raises CheckpointError."""
        return read_as(Plan, self.path / "plan.json", "Remove it, and `electra-lab ablate` recreates it.")

    def write_plan(self, plan: Plan) -> None:
        self.write("plan.json", plan.model_dump_json(indent=1) + "\n")

    def run(self, id: str) -> RunDirectory:
        """Return the run directory of a pre-trained cell, or of a reference."""
        return RunDirectory(self.path / "cells" / id)

    def finetuning(self, id: str) -> FinetuningFolder:
        """Return the folder of a cell that is a fine-tuning, which has one seed."""
        return FinetuningFolder(self.path / "cells" / id)

    def experiment(self, id: str) -> Path:
        return self.path / "plan" / f"{id}.yaml"

    def shared(self, measure: PlannedMeasure) -> Path:
        return self.path / "shared" / measure.key

    def failure(self, id: str) -> Failure | None:
        """Return the failure of a cell that is not done. Raises CheckpointError if the note is damaged."""
        note = self.path / "failed" / f"{id}.json"
        return read_as(Failure, note, "Remove it.") if note.is_file() else None

    def measures(self, id: str, step: int | None = None) -> Measures:
        """Return the measures of a cell. Raises CheckpointError, also for those of another cell."""
        return read_measures(self.run(id).path / "measures.json", id, step)

    def is_used(self, reference: str, plan: Plan) -> bool:
        """Return True if every measure that refers to a run has used it."""
        using = [measure for measure in plan.measures if reference in measure.references.values()]
        return all(self.shared(measure).is_dir() for measure in using)

    def note_measure(
        self, id: str, step: int, key: str, numbers: dict[str, float], documents: dict[str, list[float]] | None = None
    ) -> None:
        """Add the numbers of a measure, after a step, to a cell; damaged ones are measured again.

        Raises CheckpointError if this process has lost its claim to the cell.
        """
        if id in self._claims:
            self._claims[id].refuse_lost()
        try:
            measures = self.measures(id, step)
        except CheckpointError:
            measures = Measures(run=id, step=step)
        measures.numbers[key], measures.documents[key] = dict(numbers), documents or {}
        self.write(f"cells/{id}/measures.json", measures.model_dump_json() + "\n")

    def note_failure(self, id: str, error: str | None, attempts: int = 1) -> None:
        """Note why a cell is not done; None removes the note."""
        if error is not None:
            self.write(f"failed/{id}.json", Failure(error=error, attempts=attempts).model_dump_json(indent=1) + "\n")
        else:
            (self.path / "failed" / f"{id}.json").unlink(missing_ok=True)

    def pruned(self, id: str) -> str:
        """Return the reason why a search pruned a cell; "" if it did not."""
        note = self.run(id).path / "pruned.json"
        return read_as(Failure, note, "Remove it.").error if note.is_file() else ""

    def note_pruned(self, id: str, reason: str) -> None:
        self.write(f"cells/{id}/pruned.json", Failure(error=reason).model_dump_json() + "\n")

    def write(self, name: str, text: str) -> None:
        """Write a file atomically, even if several processes write it at once."""
        write_whole(self.path / name, text)

    def write_bytes(self, name: str, content: bytes) -> None:
        with disk(self.path):
            (self.path / name).parent.mkdir(exist_ok=True)
            with new_file(self.path / name, "wb") as stream:
                stream.write(content)

    @contextmanager
    def claimed(self, name: str, *, wait: bool = False) -> Iterator[bool]:
        """Hold the claim to a name; yields False if another process has it. It ends with the process."""
        with ExitStack() as stack:
            with disk(self.path):
                claim = stack.enter_context(lock(self.path / "claims" / name, wait=wait))
            self._claims[name] = claim
            yield bool(claim)

    def is_claimed(self, name: str) -> bool:
        """Return True if another process has claimed the name."""
        with self.claimed(name) as free:
            return not free

    def refuse_other(self, ids: set[str], differs: Callable[[str], str] = lambda id: "") -> None:
        """Raise ConfigError if the folder has another plan, naming how a cell `differs`; CheckpointError if damaged."""
        path = self.path
        try:
            if path.exists() and not path.is_dir():
                raise ConfigError(f"--out {path}: is not a folder.")
            names = {file.name for file in path.iterdir() if file.suffix != ".part"} if path.exists() else set()
            cells = {folder.name for folder in (path / "cells").iterdir()} if "cells" in names else set()
        except OSError as error:
            raise ConfigError(f"--out {path}: cannot be read ({error.strerror}).") from None
        if "plan.json" in names:
            cells = {cell.id for cell in self.plan.cells}
        elif not names <= {*ROOMS, *OTHERS}:  # otherwise it was stopped before the plan was written
            raise ConfigError(f"--out {path}: is not empty and not the folder of an ablation. Choose another folder.")
        if strange := sorted(id for id in cells - ids if not id.startswith("reference-of-")):
            raise ConfigError(
                f"--out {path}: holds another plan: its cell {strange[0]} (and {len(strange) - 1} more) is not in this "
                f"one{differs(strange[0])}. Seeds and variants may be added to a plan; for any other change choose "
                "another folder."
            )


def is_ablation_folder(path: Path) -> bool:
    return (path / "plan.json").is_file()


def search_of(confirmation: Path) -> Path | None:
    """Return the folder of the search that a folder in its `confirm` belongs to, None for any other folder."""
    parent = confirmation.absolute().parent
    return parent.parent if parent.name == "confirm" and is_ablation_folder(parent.parent) else None
