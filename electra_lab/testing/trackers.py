"""Laws of trackers."""

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from electra_lab.config.schema import ExperimentConfig
from electra_lab.jobs.track import FILE, tracking
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.testing.common import Contract
from registry import trackers
from registry.component import Component
from registry.errors import Preempted
from registry.signature import validate

Values = dict[str, dict[int, list[float]]]  # by metric and step
ENDS = (None, Preempted("stopped"), ValueError("failed"))


class TrackerContract(Contract):
    """Laws of trackers: the values that they were sent are read back. Implement `read`.

    `folder` is of the whole class, so that a library may keep there what all runs share.
    """

    registry = trackers

    def read(self, run: Path, id: str) -> Mapping[str, Mapping[int, list[float]]]:
        """Return by metric and step all values of the tracker's run, as the reader of its own library shows them.

        run  the run directory
        id   id that `start` returned
        """
        raise NotImplementedError("a tracker's test class reads the run with the tracker's own library")

    @pytest.fixture
    def folder(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.getbasetemp() / f"runs of {type(self).__name__}"
        path.mkdir(exist_ok=True)
        return path

    @pytest.fixture
    def run(self, folder: Path) -> Path:
        path = folder / uuid4().hex[:8]
        path.mkdir()
        return path

    @pytest.fixture(autouse=True)
    def _leaves_everything_as_it_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> Iterator[None]:
        """It prints nothing, writes nothing where the program was started, and takes neither signals nor exits."""
        here = tmp_path / "here"
        here.mkdir()
        monkeypatch.chdir(here)
        before = _hooks()
        yield
        captured = capfd.readouterr()
        assert captured.out + captured.err == ""
        assert list(here.iterdir()) == []
        assert _hooks() == before

    def train(self, run: Path, steps: range, end: Exception | None = None) -> None:
        """Train from a checkpoint at `steps.start` through `steps.stop`, and end with an exception if one is given."""
        directory, notes = RunDirectory(run), list[str]()
        options: Any = validate(self.entry.schema, self.options)
        config = ExperimentConfig.model_construct(name="law", trackers=[Component(self.name, options)])
        directory.truncate(steps.start)
        with (
            suppress(Preempted, ValueError),
            tracking(config, directory, notes.append, name=f"law-{run.name}", step=steps.start) as track,
        ):
            for line in lines(steps):
                directory.append(line)
                track(line)
            if end:
                raise end
        assert notes == []

    def shown(self, run: Path) -> Values:
        shown: Values = {}
        for name, by_step in self.read(run, self.id(run)).items():
            shown[name] = {step: list(values) for step, values in by_step.items()}
        return shown

    def id(self, run: Path) -> str:
        return str(RunDirectory(run).read_json(FILE)[0]["id"])

    def test_nothing_is_missing(self) -> None:
        tracker = self.component()()
        assert isinstance(tracker.rewinds, bool)
        assert tracker.check() is None

    def test_every_record_arrives(self, run: Path) -> None:
        self.train(run, range(7))
        assert self.shown(run) == sent(7)

    @pytest.mark.parametrize("end", ENDS, ids=("done", "stopped", "failed"))
    def test_a_resumed_run_goes_on_as_if_it_had_not_ended(self, run: Path, end: Exception | None) -> None:
        """At the step where it ended, or at an earlier one: a step is never there twice."""
        self.train(run, range(4), end)
        first = self.id(run)
        self.train(run, range(4, 7), end)
        self.train(run, range(3, 9), end)
        assert self.id(run) == first, "it is another run"
        assert self.shown(run) == sent(9)

    def test_runs_are_kept_apart(self, folder: Path, run: Path) -> None:
        other = folder / f"{run.name}-other"
        other.mkdir()
        self.train(run, range(3))
        self.train(other, range(6))
        self.train(run, range(3, 4))
        assert (self.shown(run), self.shown(other)) == (sent(4), sent(6))


def lines(steps: range) -> Iterator[dict[str, Any]]:
    """Yield the lines of metrics.jsonl after these steps; there is an evaluation after every third."""
    for step in range(steps.start + 1, steps.stop + 1):
        yield {"step": step, "split": "train", "loss": 0.5**step, "tokens": 16 * step}
        if step % 3 == 0:
            yield {"step": step, "split": "validation", "loss": 0.5 ** (step + 1)}


def sent(steps: int) -> Values:
    """Return the content of a tracker after all lines up to a step."""
    values: Values = {}
    for line in lines(range(steps)):
        for name in line.keys() - {"step", "split"}:
            values.setdefault(f"{line['split']}/{name}", {})[line["step"]] = [line[name]]
    return values


def _hooks() -> tuple[Any, ...]:
    """Return the state that determines how the process ends, and its working directory."""
    return *map(signal.getsignal, signal.valid_signals()), sys.exit, sys.excepthook, os.getcwd()
