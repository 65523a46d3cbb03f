"""The bar and the page of a job while it runs."""

from __future__ import annotations

import os
import pty
import re
import select
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from electra_lab.jobs import lifecycle as module
from electra_lab.jobs.lifecycle import Progress, live_page
from electra_lab.jobs.saving import Saver
from electra_lab.presentation.pages import Unfinished
from electra_lab.training.loop import Record
from registry.errors import DataError, Interrupted
from tests.helpers import exit_code, write_experiment
from tests.scorecard.lab import Lab


def slowed(*arguments: str) -> None:
    """Run a command with training so slow that a bar drawn ten times a second shows every part."""

    def slow(progress: Progress, record: Record) -> None:
        time.sleep(0.06)
        noted(progress, record)

    def slow_save(saver: Saver) -> None:
        time.sleep(0.15)
        save(saver)

    noted, save = Progress.__call__, Saver.save
    Progress.__call__, Saver.save = slow, slow_save  # type: ignore[method-assign]
    exit_code(*arguments)


def test_the_bar_of_a_run_shows_its_phases_and_the_time_left(forks: Lab, tmp_path: Path) -> None:
    file = write_experiment(
        tmp_path, train="{steps: 10, batch_size: 4, log_every: 5, precision: fp32}",
        evaluate="{every: 5, batch_size: 4}", checkpoint="{every: 5}",
        data=f"{{sequence_length: 16, held_out: 0.3, store: {tmp_path / 'store'}}}",
    )  # fmt: skip
    ours, theirs = pty.openpty()
    to_terminal = "stream", {"number": 2, "target": os.ttyname(theirs)}
    process = forks.start(
        f"{__name__}:slowed", "run", file, "--out", tmp_path / "run", cwd=tmp_path, hooks=[to_terminal],
        environment={"TERM": "xterm", "COLUMNS": "80"},
    )  # fmt: skip
    said = b""
    while not said.endswith(b"report.html\r\n") and select.select([ours], [], [], 60)[0]:
        said += os.read(ours, 1 << 16)
    assert process.wait().code == 0
    os.close(ours)
    os.close(theirs)
    drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said.decode()).splitlines()
    bars = [line for line in drawn if " left " in line]
    assert all(len(line) <= 80 for line in bars)
    assert {line.split()[0] for line in bars} >= {"training", "saving", "evaluating", "testing"}
    times = r"0:00:\d\d left (0:00:\d\d|-:--:--)$"
    assert any(re.match(rf"training \S+ [1-9]\d*/10 steps {times}", line) for line in bars)
    assert any(re.match(rf"testing \S+ [1-9]\d*/\d+ rows {times}", line) for line in bars)
    assert not any(line.startswith("training") and "10/10" in line for line in bars)


def job(monkeypatch: pytest.MonkeyPatch, live: Any, error: Exception) -> None:
    """Record twice, with time for a page each, then fail."""
    monkeypatch.setattr(module, "PAGE_SHARE", 0)
    with live as page:
        page()
        page()
        raise error


def test_pages_take_two_percent_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, written = SimpleNamespace(now=0.0), list[Unfinished]()
    monkeypatch.setattr(module.time, "monotonic", lambda: clock.now)

    def write(state: Unfinished) -> None:
        written.append(state)
        clock.now += 2.0

    with live_page(write, pytest.fail) as page:
        for _ in range(1000):
            clock.now += 1.0
            page()
            if len(written) == 1:
                assert written[0].lives  # from the first record on
    assert 0.015 * clock.now < 2.0 * len(written) <= 0.02 * clock.now + 2.0
    assert written[-1].pause == pytest.approx(102, abs=1)
    assert (written[0].reload, written[-1].reload) == (5, 60)


def test_a_page_that_cannot_be_written_is_noted_once_and_hides_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()

    def write(_: Unfinished) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match=r"^the first error$"):
        job(monkeypatch, live_page(write, said.append), DataError("the first error"))
    assert len(said) == 1
    assert "No space left" in said[0]


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (Interrupted("stopped"), "interrupted"),
        (DataError("row 3 <b>."), "row 3 <b>."),
        (ZeroDivisionError(), "internal"),
    ],
)
def test_the_last_page_says_how_the_job_ended(monkeypatch: pytest.MonkeyPatch, error: Exception, how: str) -> None:
    written = list[Unfinished]()
    with pytest.raises(type(error)):
        job(monkeypatch, live_page(written.append, pytest.fail), error)
    assert [state.lives for state in written] == [True, True, False]
    assert how in written[-1].how
