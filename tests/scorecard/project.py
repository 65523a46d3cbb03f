"""A tiny experiment in a folder of its own, what an undisturbed run of it gives, and how a user continues one."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.helpers import write_experiment
from tests.scorecard.lab import Ended, Lab, Likeness, is_valid, likeness, litter, records, saved

STEPS, EVERY, KEEP = 12, 3, 2
SECTIONS = {
    "data": "{sequence_length: 16, held_out: 0.3, store: store}",
    "train": f"{{steps: {STEPS}, batch_size: 4, micro_batch_size: 2, precision: fp32, log_every: 1}}",
    "evaluate": "{every: 4, batch_size: 2}",
    "checkpoint": f"{{every: {EVERY}, keep: {KEEP}}}",
}


@dataclass
class Project:
    """The folder of an experiment, with its token store."""

    lab: Lab
    folder: Path
    file: Path
    reference: Path  # an undisturbed run
    expected: Likeness
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @classmethod
    def create(cls, lab: Lab, folder: Path, **sections: str) -> Project:
        file = write_experiment(folder, **{**SECTIONS, **sections})
        reference = folder / "reference"
        ended = lab("run", file, "--out", reference, cwd=folder)
        assert ended.code == 0, ended
        return cls(lab, folder, file, reference, likeness(reference))

    def new(self) -> Path:
        """Return a place for a run."""
        return self.folder / f"run-{next(self._numbers)}"

    def copy(self, source: Path | None = None) -> Path:
        """Return a copy of a run, by default of the reference."""
        return Path(shutil.copytree(source or self.reference, self.new(), symlinks=True))

    def run(self, out: Path, *more: object, **options: Any) -> Ended:
        return self.lab("run", self.file, "--out", out, *more, cwd=self.folder, **options)

    def resume(self, out: Path, *more: object, **options: Any) -> Ended:
        return self.lab("resume", out, *more, cwd=self.folder, **options)

    def stopped(self, step: int) -> Path:
        """Return a run that a signal has stopped after a step."""
        import signal

        out = self.new()
        hook = ("signals", {"point": "step", "nth": step, "numbers": [int(signal.SIGTERM)]})
        ended = self.run(out, hooks=[hook])
        assert ended.code == 75, ended
        return out

    def again(self, out: Path, *more: object, **options: Any) -> Ended:
        """Continue a run in the way that the documentation tells: `resume`, or `run` again if it never began."""
        began = (out / "provenance.json").is_file()
        return self.resume(out, *more, **options) if began else self.run(out, *more, **options)

    def ends_alike(self, out: Path) -> None:
        """Continue a run and compare it with the undisturbed one; then remove it. Raises AssertionError."""
        ended = self.again(out)
        assert ended.code == 0, f"could not be continued: {ended}"
        assert not ended.traced, ended.last
        self.is_alike(out)
        shutil.rmtree(out)

    def is_alike(self, out: Path) -> None:
        """Compare a finished run with the undisturbed one. Raises AssertionError."""
        differs = self.expected.differs(likeness(out))
        assert not differs, f"differs from the undisturbed run in {differs}"
        assert (out / "report.html").is_file(), "has no report"
        assert not litter(out), f"left over: {litter(out)}"
        hidden = [path.name for path in (self.folder / "store").glob(".*")]
        assert not hidden, f"left over in the store: {hidden}"


def newest(out: Path) -> int:
    """Return the step of the newest valid checkpoint; 0 if there is none."""
    return max((int(path.name.removeprefix("step-")) for path in saved(out) if is_valid(path)), default=0)


def done(out: Path) -> int:
    """Return the last step that a run has recorded."""
    return max((each["step"] for each in records(out)), default=0)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a store; its notes of what was verified have times."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".verified" not in str(path)
    }
