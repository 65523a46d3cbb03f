"""Count the trials of every row. `make scorecard` runs all of them and writes build/scorecard.md and .json."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from tests.scorecard.lab import Lab
from tests.scorecard.project import Project
from tests.scorecard.rows import ALL, FULL, ONLY, ROWS, SEED
from tests.scorecard.table import write_table

T = TypeVar("T")
SCORES = pytest.StashKey[list["Score"]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "scorecard: a part of the scorecard that takes long: make scorecard")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the long parts to `make scorecard`."""
    if not FULL:
        items[:] = [item for item in items if not item.get_closest_marker("scorecard")]


@dataclass
class Score:
    """The trials of one test of a row."""

    row: int
    test: str
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    skipped: str = ""

    def chosen(self, cases: Iterable[T], words: Callable[[T], str] = str, number: int | None = None) -> list[T]:
        """Return the cases to try, drawn by the seed: as many as in rows.py (in the small form, `number`).

        words  a part of a trial's words that identifies its case
        """
        found = list(cases)
        if ONLY:
            return [case for case in found if ONLY in words(case) or words(case) in ONLY]
        row = ROWS[self.row]
        if FULL:
            number = len(found) if ALL or row.most is None else row.most
        elif number is None:
            number = row.small
        return found if number >= len(found) else random.Random(f"{SEED} {self.test}").sample(found, number)

    @property
    def number(self) -> int:
        """Return the number of random cases to try."""
        row = ROWS[self.row]
        return row.full if FULL else row.small

    def numbers(self) -> list[int]:
        """Return the numbers of random trials, whose words have `trial N:`."""
        return [n for n in range(self.number) if not ONLY or f"trial {n}:" in ONLY]

    def dice(self, words: object = "") -> random.Random:
        """Return random numbers that depend only on the seed."""
        return random.Random(f"{SEED} {self.test} {words}")

    @contextmanager
    def trial(self, words: str) -> Iterator[None]:
        """Count the block as a trial; `words` say how to repeat it."""
        if ONLY and ONLY not in words:
            yield
            return
        try:
            yield
        except (AssertionError, OSError, ValueError, LookupError) as error:
            reason = " ".join(str(error).split("\n")[0].split()) or type(error).__name__
            self.failed.append(f"{words}: {reason[:600]}")
        else:
            self.passed += 1

    @property
    def report(self) -> str:
        shown = "\n".join(f"  {trial}" for trial in self.failed[:40])
        more = f"\n  and {len(self.failed) - 40} more" if len(self.failed) > 40 else ""
        tried = self.passed + len(self.failed)
        return f"row {self.row}, {self.test}: {len(self.failed)} of {tried} trials failed (seed {SEED})\n{shown}{more}"


@pytest.fixture
def score(request: pytest.FixtureRequest) -> Score:
    """The score of a test, whose file is called test_row_NN_*."""
    counted = Score(int(request.path.stem.split("_")[2]), request.node.name)
    request.config.stash.setdefault(SCORES, []).append(counted)
    return counted


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Fail a test if one of its trials has failed."""
    counted: Any = pyfuncitem.funcargs.get("score")
    began = time.perf_counter()
    try:
        result = yield
    except pytest.skip.Exception as skipped:
        if counted:
            counted.skipped = str(skipped)
        raise
    except Exception as error:
        if counted:
            counted.failed.append(f"the test itself: {' '.join(str(error).split())[:300]}")
        raise
    finally:
        if counted:
            counted.seconds = time.perf_counter() - began
        if counted and FULL and not ONLY:
            write_table(pyfuncitem.config.stash[SCORES])
    if counted:
        if counted.failed:
            pytest.fail(counted.report, pytrace=False)
        assert counted.passed or ONLY, "nothing was tried"
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    scores = session.config.stash.get(SCORES, [])
    if FULL and scores and not ONLY:
        print(f"\n{write_table(scores)}")


@pytest.fixture(scope="session")
def lab(forks: Lab) -> Lab:
    """The command line, in processes forked from one that has imported it."""
    if forks.shim is None:
        pytest.skip("faults are injected by LD_PRELOAD, by a library that only Linux has and a C compiler (cc) makes")
    return forks


@pytest.fixture(scope="session")
def project(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A tiny experiment with its token store and an undisturbed run."""
    return Project.create(lab, tmp_path_factory.mktemp("project") / "p")
