"""Row 1: SIGKILL before every call that changes a file, in the middle of every write, and at random times."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.scorecard.conftest import Score
from tests.scorecard.lab import Fault, Lab
from tests.scorecard.project import Project, Store, call, kills, little_is_lost, newest, sets
from tests.scorecard.rows import ONLY

KILLED = -signal.SIGKILL


def test_before_every_call_in_the_run_directory(score: Score, project: Project) -> None:
    out = project.new()
    calls = project.calls(out)
    project.is_alike(out)
    for action, nth in score.chosen(kills(calls), call):
        out = project.new()
        fault = Fault(out, action, nth)
        with project.trial(score, f"{fault.words} ({calls[nth - 1]})", out):
            project.run(out, fault=fault).must(KILLED)
            little_is_lost(out)
            project.ends_alike(out)


@pytest.mark.scorecard
def test_before_every_call_of_a_resume(score: Score, project: Project) -> None:
    """A resume cleans up and truncates the records; this must be as safe as the run itself."""
    begun = project.stopped(5)
    out = project.copy(begun)
    calls = project.calls(out, verb="resume")
    project.is_alike(out)
    for action, nth in score.chosen(kills(calls), call):
        out = project.copy(begun)
        fault = Fault(out, action, nth)
        with project.trial(score, f"{fault.words} of a resume ({calls[nth - 1]})", out):
            project.resume(out, fault=fault).must(KILLED)
            assert newest(out) >= 5, "the checkpoint from which it was resumed is gone"
            project.ends_alike(out)


def test_before_every_call_in_the_token_store(score: Score, project: Project) -> None:
    store = Store(project, "prepared")
    for action, nth in score.chosen(kills(store.calls), call):
        fault = Fault(store.folder, action, nth)
        with score.trial(f"{fault.words} of prepare ({store.calls[nth - 1]})"):
            store.build(fault).must(KILLED)
            store.is_mended()


@pytest.mark.scorecard
def test_at_random_times(score: Score, lab: Lab, project: Project, tmp_path: Path) -> None:
    """From the first line to the report; every second run builds its own token store, every third is killed twice."""
    times = []
    for again in range(0 if ONLY and not score.numbers() else 3):
        began, out = time.monotonic(), project.new()
        project.run(out, *sets(f"data.store={tmp_path / str(again)}")).must(0)
        times.append(time.monotonic() - began)
    total, killed = max(times, default=0), 0
    for trial in score.numbers():
        dice = score.dice(trial)
        more = sets(f"data.store={tmp_path / f'store-{trial}'}") if trial % 2 else []
        moments = [dice.uniform(0, total) for _ in range(1 + (trial % 3 == 0))]
        words = f"trial {trial}: killed after {', '.join(f'{m:.3f} s' for m in moments)}"
        with project.trial(score, words) as out:
            for moment in moments:
                began = (out / "provenance.json").is_file()
                arguments = ("resume", out) if began else ("run", project.file, "--out", out, *more)
                running = lab.start(*arguments, cwd=project.folder)
                time.sleep(moment)
                running.send(signal.SIGKILL)
                killed += running.wait().code == KILLED
            project.ends_alike(out, *more)
    print(f"{killed} kills struck")
