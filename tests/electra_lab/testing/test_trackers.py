"""The laws of trackers find mistakes: each one by the law for it."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
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

    rewinds = shared = False

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
    """A lawful tracker that can go back."""

    rewinds = True

    def start(self, run: Tracked, /) -> str:
        id = super().start(run)
        lines = self.file.read_text().splitlines(keepends=True) if self.file.exists() else []
        self.file.write_text("".join(line for line in lines if json.loads(line)[0] <= run.step))
        return id


def starting(before: Callable[[Tracked], object]) -> dict[str, Any]:
    """Do something when a run starts."""

    def start(self: Lawful, run: Tracked, /) -> str:
        before(run)
        return Lawful.start(self, run)

    return {"start": start}


def other_run(self: Lawful, run: Tracked, /) -> str:
    Lawful.start(self, run)
    return uuid4().hex


def one_file(self: Lawful, run: Tracked, /) -> str:
    id = Lawful.start(self, run)
    self.file = run.folder.parent / "lines"
    return id


def one_record_per_step(self: Lawful, step: int, values: Mapping[str, float], /) -> None:
    if "train/loss" in values:
        Lawful.record(self, step, values)


def one_later(self: Any, step: int, values: Mapping[str, float], /) -> None:
    """Write each record only when the next one comes."""
    if last := getattr(self, "last", None):
        Lawful.record(self, *last)
    self.last = step, values


def fails(self: Lawful, outcome: str = "something is missing", /) -> None:
    raise OSError(outcome)


def take_exits(_: Tracked) -> None:
    before = sys.exit
    sys.exit = lambda code=0: before(code)


AGAIN, ARRIVES = "a_resumed_run_goes_on_as_if_it_had_not_ended", "every_record_arrives"
# The law that finds a mistake, its message, the changed tracker, and the change.
MISTAKES: dict[str, tuple[str, str, type[Lawful], dict[str, Any]]] = {
    "forgets nothing": (AGAIN, "assert", Lawful, {"rewinds": True}),
    "forgets": (AGAIN, "assert", Rewinding, {"rewinds": False}),
    "another run": (AGAIN, "another run", Lawful, {"start": other_run}),
    "one record per step": (ARRIVES, "assert", Lawful, {"record": one_record_per_step}),
    "one later": (ARRIVES, "assert", Lawful, {"record": one_later}),
    "one file": ("runs_are_kept_apart", "assert", Lawful, {"start": one_file, "shared": True}),
    "fails": (ARRIVES, "failed at the end", Lawful, {"close": fails}),
    "prints": (ARRIVES, "hello", Lawful, starting(lambda _: print("hello"))),
    "leaves files": (ARRIVES, "here", Lawful, {"close": lambda self, outcome, /: Path("here").touch()}),
    "takes signals": (ARRIVES, "assert", Lawful, starting(lambda _: signal.signal(signal.SIGTERM, lambda *_: None))),
    "takes exits": (ARRIVES, "assert", Lawful, starting(take_exits)),
    "moves": (ARRIVES, "assert", Lawful, starting(lambda run: os.chdir(run.folder))),
    "lacks": ("nothing_is_missing", "something is missing", Lawful, {"check": fails}),
}


@pytest.fixture
def held(request: pytest.FixtureRequest) -> Any:
    """Return a function that tests a tracker against a law, with the fixtures of the suite."""

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
                return run.parent if kind.shared else run

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


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(held: Any, mistake: str) -> None:
    law, reason, kind, changed = MISTAKES[mistake]
    with pytest.raises((AssertionError, OSError), match=reason):
        held(type("Wrong", (kind,), {"__doc__": "A mistake.", **changed}), law)


@pytest.mark.parametrize("kind", [Lawful, Rewinding])
@pytest.mark.parametrize("law", sorted({law for law, *_ in MISTAKES.values()}))
def test_a_lawful_one_passes(held: Any, kind: type[Lawful], law: str) -> None:
    held(kind, law)


def test_read_is_the_authors_own() -> None:
    with pytest.raises(NotImplementedError):
        TrackerContract().read(Path(), "")
