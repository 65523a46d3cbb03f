"""Row 19: two processes in one directory, and locks of processes that are gone."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.scorecard.conftest import Score
from tests.scorecard.lab import Running
from tests.scorecard.project import Project
from tests.scorecard.rows import FULL


def held(project: Project, out: Path, *verb: Any, mark: Path) -> Running:
    """Start a command that waits in its second forward pass until `mark` is removed."""
    hook = ("hold", {"point": "forward", "nth": 3, "mark": str(mark)})
    running = project.lab.start(*verb, cwd=project.folder, hooks=[hook])
    deadline = time.monotonic() + 60
    while not mark.exists():
        assert time.monotonic() < deadline, running.err.read_text()
        time.sleep(0.01)
    return running


@pytest.mark.scorecard
def test_the_second_is_refused(score: Score, project: Project, tmp_path: Path) -> None:
    out, mark = project.new(), tmp_path / "mark"
    first = held(project, out, "run", project.file, "--out", out, mark=mark)
    for verb in (("resume", out), ("run", project.file, "--out", out)):
        with score.trial(f"{verb[0]} while another process trains there"):
            ended = project.lab(*verb, cwd=project.folder)
            assert ended.code == 2, ended
            assert not ended.traced, ended
            if verb[0] == "resume":
                assert str(first.pid) in ended.last, f"does not name the process: {ended}"
    mark.unlink()
    with score.trial("the first ends as if nothing had been"):
        ended = first.wait()
        assert ended.code == 0, ended
        project.is_alike(out)


@pytest.mark.scorecard
def test_two_that_start_at_once(score: Score, project: Project, tmp_path: Path) -> None:
    for trial in range(score.number if score.number == 1 else 10):
        out, store = project.new(), tmp_path / f"store-{trial}"
        with score.trial(f"trial {trial}: two runs into one directory at the same time"):
            both = [
                project.lab.start("run", project.file, "--out", out, "--set", f"data.store={store}", cwd=project.folder)
                for _ in range(2)
            ]
            ended = [each.wait() for each in both]
            assert sorted(each.code for each in ended) == [0, 2], ended
            assert not any(each.traced for each in ended), ended
            project.is_alike(out)
            assert not list(store.glob(".*"))


@pytest.mark.scorecard
def test_a_lock_of_a_dead_process_is_taken_over(score: Score, project: Project, tmp_path: Path) -> None:
    out, mark = project.new(), tmp_path / "mark"
    first = held(project, out, "run", project.file, "--out", out, mark=mark)
    first.send(signal.SIGKILL)
    first.wait()
    if FULL:
        with score.trial("the process was killed"):
            project.ends_alike(project.copy(out))
    with score.trial("the lock names a process that is alive and something else"):
        copy = project.copy(out) if FULL else out
        (copy / ".lock").write_text("1")
        project.ends_alike(copy)
    shutil.rmtree(out, ignore_errors=True)
