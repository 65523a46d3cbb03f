"""The laws of trackers bite: each mistake is found by the law that is about it."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from electra_lab.testing import TrackerContract
from electra_lab.testing.trackers import Values
from registry import Tracked, trackers
from tests.electra_lab.testing.hold import hold


class Lawful:
    """A file of lines in the run directory."""

    rewinds = False

    def __init__(self, /) -> None: ...

    def check(self) -> None: ...

    def start(self, run: Tracked, /) -> str:
        self.file = run.folder / "lines"
        return run.id or uuid4().hex

    def record(self, step: int, values: Mapping[str, float], /) -> None:
        with self.file.open("a") as stream:
            stream.write(json.dumps([step, dict(values)]) + "\n")

    def close(self, outcome: str, /) -> None: ...


class Rewinding(Lawful):
    """A lawful one that forgets."""

    rewinds = True

    def start(self, run: Tracked, /) -> str:
        id = super().start(run)
        lines = self.file.read_text().splitlines(keepends=True) if self.file.exists() else []
        self.file.write_text("".join(line for line in lines if json.loads(line)[0] <= run.step))
        return id


class ForgetsNothing(Lawful):
    rewinds = True


class Forgets(Rewinding):
    rewinds = False


class OneRecordPerStep(Lawful):
    def record(self, step: int, values: Mapping[str, float], /) -> None:
        if "train/loss" in values:
            super().record(step, values)


class OtherRun(Lawful):
    def start(self, run: Tracked, /) -> str:
        super().start(run)
        return uuid4().hex


class OneFile(Lawful):
    def start(self, run: Tracked, /) -> str:
        id = super().start(run)
        self.file = run.folder.parent / "lines"
        return id


class KeepsTheLast(Lawful):
    """Writes a record when the next one comes."""

    last: Any = None

    def record(self, step: int, values: Mapping[str, float], /) -> None:
        if self.last:
            super().record(*self.last)
        self.last = step, values


class Fails(Lawful):
    def close(self, outcome: str, /) -> None:
        raise OSError(outcome)


class Prints(Lawful):
    def start(self, run: Tracked, /) -> str:
        print("hello")
        return super().start(run)


class LeavesFiles(Lawful):
    def close(self, outcome: str, /) -> None:
        Path("here").touch()


class TakesSignals(Lawful):
    def start(self, run: Tracked, /) -> str:
        signal.signal(signal.SIGTERM, lambda *_: None)
        return super().start(run)


class TakesExits(Lawful):
    def start(self, run: Tracked, /) -> str:
        before = sys.exit
        sys.exit = lambda code=0: before(code)
        return super().start(run)


class Moves(Lawful):
    def start(self, run: Tracked, /) -> str:
        os.chdir(run.folder)
        return super().start(run)


class Lacks(Lawful):
    def check(self) -> None:
        raise AssertionError("something is missing")


AGAIN = "a_resumed_run_goes_on_as_if_it_had_not_ended"
MISTAKES: dict[type[Lawful], tuple[str, str]] = {
    ForgetsNothing: (AGAIN, "assert"),
    Forgets: (AGAIN, "assert"),
    OtherRun: (AGAIN, "another run"),
    OneRecordPerStep: ("every_record_arrives", "assert"),
    KeepsTheLast: ("every_record_arrives", "assert"),
    OneFile: ("runs_are_kept_apart", "assert"),
    Fails: ("every_record_arrives", "failed at the end"),
    Prints: ("every_record_arrives", "hello"),
    LeavesFiles: ("every_record_arrives", "here"),
    TakesSignals: ("every_record_arrives", "assert"),
    TakesExits: ("every_record_arrives", "assert"),
    Moves: ("every_record_arrives", "assert"),
    Lacks: ("nothing_is_missing", "something is missing"),
}


@pytest.fixture
def held(request: pytest.FixtureRequest) -> Any:
    """Return a function that holds a tracker to a law, with the fixtures of the suite."""

    def hold_to(kind: type[Lawful], law: str) -> None:
        trackers.register("mine")(kind)
        tmp_path, patched = request.getfixturevalue("tmp_path"), request.getfixturevalue("monkeypatch")
        capfd, before = request.getfixturevalue("capfd"), (sys.exit, signal.getsignal(signal.SIGTERM))

        class Suite(TrackerContract):
            name = "mine"

            def read(self, run: Path, id: str) -> Values:
                found = Values()
                for step, values in map(json.loads, (self.place(run) / "lines").read_text().splitlines()):
                    for name, value in values.items():
                        found.setdefault(name, {}).setdefault(step, []).append(value)
                return found

            def place(self, run: Path) -> Path:
                return run.parent if kind is OneFile else run

        suite, run = Suite(), tmp_path / "runs" / "one"
        run.mkdir(parents=True)
        around: Iterator[None] = suite._leaves_everything_as_it_was.__wrapped__(suite, tmp_path, patched, capfd)
        try:
            next(around)
            hold(suite, law, run=run, folder=run.parent, end=None)
            next(around, None)
        finally:
            sys.exit, handler = before
            signal.signal(signal.SIGTERM, handler)

    return hold_to


@pytest.mark.parametrize("kind", MISTAKES, ids=lambda kind: kind.__name__)
def test_a_mistake_is_found(held: Any, kind: type[Lawful]) -> None:
    kind.__doc__ = kind.__doc__ or "A mistake."
    law, reason = MISTAKES[kind]
    with pytest.raises(AssertionError, match=reason):
        held(kind, law)


@pytest.mark.parametrize("kind", [Lawful, Rewinding])
@pytest.mark.parametrize("law", sorted({law for law, _ in MISTAKES.values()}))
def test_a_lawful_one_passes(held: Any, kind: type[Lawful], law: str) -> None:
    held(kind, law)


def test_read_is_the_authors_own() -> None:
    with pytest.raises(NotImplementedError):
        TrackerContract().read(Path(), "")
