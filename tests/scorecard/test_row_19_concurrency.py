"""Row 19: two processes in one directory, and locks of processes that have ended."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.scorecard.conftest import Score
from tests.scorecard.lab import Running
from tests.scorecard.project import Project, sets


def held(project: Project, out: Path, mark: Path) -> Running:
    """Start a run that waits in its second forward pass until `mark` is removed."""
    hook = ("hold", {"point": "forward", "nth": 3, "mark": str(mark)})
    running = project.lab.start("run", project.file, "--out", out, cwd=project.folder, hooks=[hook])
    deadline = time.monotonic() + 60
    while not mark.exists():
        assert time.monotonic() < deadline, running.err.read_text()
        time.sleep(0.01)
    return running


@pytest.mark.scorecard
def test_the_second_is_refused(score: Score, project: Project, tmp_path: Path) -> None:
    out, mark = project.new(), tmp_path / "mark"
    first = held(project, out, mark)
    with score.trial("resume while another process trains there"):
        ended = project.resume(out).must(2)
        assert str(first.pid) in ended.last, f"does not name the process: {ended}"
    with score.trial("run while another process trains there"):
        project.run(out).must(2)
    mark.unlink()
    with score.trial("the first ends as if nothing had been"):
        first.wait().must(0)
        project.is_alike(out)


@pytest.mark.scorecard
def test_two_that_start_at_once(score: Score, project: Project, tmp_path: Path) -> None:
    for trial in range(10):
        store = tmp_path / f"store-{trial}"
        with project.trial(score, f"trial {trial}: two runs into one directory at the same time") as out:
            command = ("run", project.file, "--out", out, *sets(f"data.store={store}"))
            both = [project.lab.start(*command, cwd=project.folder) for _ in range(2)]
            ended = [running.wait().must(0, 2) for running in both]
            assert sorted(command.code for command in ended) == [0, 2], ended
            project.is_alike(out)
            assert not list(store.glob(".*"))


@pytest.mark.scorecard
def test_a_lock_of_a_dead_process_is_taken_over(score: Score, project: Project, tmp_path: Path) -> None:
    out, mark = project.new(), tmp_path / "mark"
    first = held(project, out, mark)
    first.send(signal.SIGKILL)
    first.wait()
    with project.trial(score, "the process was killed", project.copy(out)) as copy:
        project.ends_alike(copy)
    with project.trial(score, "the lock names a process that is alive and something else", out):
        (out / ".lock").write_text("1")
        project.ends_alike(out)
