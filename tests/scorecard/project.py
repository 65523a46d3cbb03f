"""A tiny experiment in a separate folder, the result of an undisturbed run, and the ways to continue a run."""

from __future__ import annotations

import itertools
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.helpers import write_experiment
from tests.scorecard.lab import KILL, TEAR, Ended, Fault, Lab, Likeness, is_valid, likeness, litter, records, saved

if TYPE_CHECKING:
    from tests.scorecard.conftest import Score

STEPS, EVERY, KEEP = 12, 3, 2
SECTIONS = {
    "data": "{sequence_length: 16, held_out: 0.3, store: store}",
    "train": f"{{steps: {STEPS}, batch_size: 4, micro_batch_size: 2, precision: fp32, log_every: 1}}",
    "evaluate": "{every: 4, batch_size: 2}",
    "checkpoint": f"{{every: {EVERY}, keep: {KEEP}}}",
}


def sets(*settings: str) -> list[str]:
    """Return command-line options that change these settings."""
    return [part for setting in settings for part in ("--set", setting)]


def sent(point: str, nth: int, *numbers: int, gap: float = 0.0) -> tuple[str, dict[str, Any]]:
    """Return the hook that sends these signals the n-th time a point is reached."""
    return "signals", {"point": point, "nth": nth, "numbers": [int(number) for number in numbers], "gap": gap}


def kills(calls: list[str]) -> list[tuple[int, int]]:
    """Return (action, number of the call) of a kill before each call and in the middle of each write."""
    numbered = list(enumerate(calls, start=1))
    return [(KILL, n) for n, _ in numbered] + [(TEAR, n) for n, name in numbered if name.startswith("write ")]


def call(point: tuple[int, int]) -> str:
    """Return the part of a trial's words that identifies its call."""
    return f"call {point[1]} "


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
        lab("run", file, "--out", reference, cwd=folder).must(0)
        return cls(lab, folder, file, reference, likeness(reference))

    def new(self) -> Path:
        """Return a path for a new run."""
        return self.folder / f"run-{next(self._numbers)}"

    def copy(self, source: Path | None = None) -> Path:
        """Return a copy of a run, by default of the reference."""
        return Path(shutil.copytree(source or self.reference, self.new(), symlinks=True))

    @contextmanager
    def trial(self, score: Score, words: str, out: Path | None = None) -> Iterator[Path]:
        """Count the block as a trial with a run, by default a new one; the run is removed afterwards."""
        out = out or self.new()
        with score.trial(words):
            yield out
        shutil.rmtree(out, ignore_errors=True)

    def run(self, out: Path, *more: object, **options: Any) -> Ended:
        return self.lab("run", self.file, "--out", out, *more, cwd=self.folder, **options)

    def resume(self, out: Path, *more: object, **options: Any) -> Ended:
        return self.lab("resume", out, *more, cwd=self.folder, **options)

    def calls(
        self, out: Path, *more: object, verb: str = "run", below: Path | None = None, kinds: str = ""
    ) -> list[str]:
        """Return the calls that change a run, which ends undisturbed and is kept."""
        words = ("resume", out) if verb == "resume" else ("run", self.file, "--out", out)
        return self.lab.calls(*words, *more, cwd=self.folder, below=below or out, kinds=kinds)

    def stopped(self, step: int) -> Path:
        """Return a run that a signal has stopped after a step."""
        out = self.new()
        self.run(out, hooks=[sent("step", step, signal.SIGTERM)]).must(75)
        return out

    def again(self, out: Path, *more: object, **options: Any) -> Ended:
        """Continue a run as documented: `resume`, or `run` again if it never began."""
        began = (out / "provenance.json").is_file()
        return self.resume(out, **options) if began else self.run(out, *more, **options)

    def ends_alike(self, out: Path, *more: object) -> None:
        """Continue a run, if it began, and compare it with the undisturbed one. Raises AssertionError."""
        self.again(out, *more).must(0)
        self.is_alike(out)

    def is_alike(self, out: Path) -> None:
        """Compare a finished run with the undisturbed one. Raises AssertionError."""
        differs = self.expected.differs(likeness(out))
        assert not differs, f"differs from the undisturbed run in {differs}"
        assert (out / "report.html").is_file(), "has no report"
        assert not litter(out), f"left over: {litter(out)}"
        hidden = [path.name for path in (self.folder / "store").glob(".*")]
        assert not hidden, f"left over in the store: {hidden}"


class Store:
    """A token store that `prepare` builds, with the calls of an undisturbed build and its files."""

    def __init__(self, project: Project, name: str) -> None:
        self.project, self.folder = project, project.folder / name
        self.setting = sets(f"data.store={self.folder}")
        command = ("prepare", project.file, *self.setting)
        self.calls = project.lab.calls(*command, cwd=project.folder, below=self.folder)
        self.expected = contents(self.folder)

    def build(self, fault: Fault | None = None) -> Ended:
        """Rebuild the store with a fault, or without one build only the missing parts."""
        if fault:
            shutil.rmtree(self.folder, ignore_errors=True)
        return self.project.lab("prepare", self.project.file, *self.setting, cwd=self.project.folder, fault=fault)

    def is_mended(self) -> None:
        """Build the missing parts and compare the store with the undisturbed one. Raises AssertionError."""
        self.build().must(0)
        found = contents(self.folder)
        assert found.keys() == self.expected.keys(), f"left over or missing: {found.keys() ^ self.expected.keys()}"
        assert found == self.expected, f"differs: {[name for name in found if found[name] != self.expected[name]]}"


def newest(out: Path) -> int:
    """Return the step of the newest valid checkpoint; 0 if there is none."""
    return max((int(path.name.removeprefix("step-")) for path in saved(out) if is_valid(path)), default=0)


def done(out: Path) -> int:
    """Return the last step that a run has recorded."""
    return max((record["step"] for record in records(out)), default=0)


def little_is_lost(out: Path) -> None:
    """Check that no more steps are lost than lie between two checkpoints. Raises AssertionError."""
    assert done(out) - newest(out) <= EVERY, f"step {done(out)} done, {newest(out)} saved"


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder, without a store's notes of verification, which contain times."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and ".verified" not in str(path)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
