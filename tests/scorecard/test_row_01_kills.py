"""Row 1: SIGKILL before every call that changes a file, in the middle of every write, and at random times."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.scorecard.conftest import Score
from tests.scorecard.lab import KILL, TEAR, Fault, Lab
from tests.scorecard.project import EVERY, Project, contents, done, newest
from tests.scorecard.rows import ONLY


def points(calls: list[str]) -> list[tuple[int, int]]:
    numbered = list(enumerate(calls, start=1))
    return [(KILL, n) for n, _ in numbered] + [(TEAR, n) for n, name in numbered if name.startswith("write ")]


def call(point: tuple[int, int]) -> str:
    return f"call {point[1]} "


def test_before_every_call_in_the_run_directory(score: Score, project: Project) -> None:
    out = project.new()
    calls = project.lab.calls("run", project.file, "--out", out, cwd=project.folder, below=out)
    project.is_alike(out)
    for action, nth in score.chosen(points(calls), call):
        out = project.new()
        fault = Fault(out, action, nth)
        with score.trial(f"{fault.words} ({calls[nth - 1]})"):
            ended = project.run(out, fault=fault)
            assert ended.code == -signal.SIGKILL, f"was not killed: {ended}"
            assert done(out) - newest(out) <= EVERY, f"step {done(out)} done, {newest(out)} saved"
            project.ends_alike(out)


@pytest.mark.scorecard
def test_before_every_call_of_a_resume(score: Score, project: Project) -> None:
    """Continuing a run tidies up and shortens its records, which must be as safe as the run itself."""
    begun = project.stopped(5)
    out = project.copy(begun)
    calls = project.lab.calls("resume", out, cwd=project.folder, below=out)
    project.is_alike(out)
    for action, nth in score.chosen(points(calls), call):
        out = project.copy(begun)
        fault = Fault(out, action, nth)
        with score.trial(f"{fault.words} of a resume ({calls[nth - 1]})"):
            ended = project.resume(out, fault=fault)
            assert ended.code == -signal.SIGKILL, f"was not killed: {ended}"
            assert newest(out) >= 5, "the checkpoint from which it was resumed is gone"
            project.ends_alike(out)


def test_before_every_call_in_the_token_store(score: Score, project: Project) -> None:
    folder = project.folder / "prepared"
    setting = ("--set", f"data.store={folder}")
    calls = project.lab.calls("prepare", project.file, *setting, cwd=project.folder, below=folder)
    expected = contents(folder)
    for action, nth in score.chosen(points(calls), call):
        shutil.rmtree(folder, ignore_errors=True)
        fault = Fault(folder, action, nth)
        with score.trial(f"{fault.words} of prepare ({calls[nth - 1]})"):
            ended = project.lab("prepare", project.file, *setting, cwd=project.folder, fault=fault)
            assert ended.code == -signal.SIGKILL, f"was not killed: {ended}"
            again = project.lab("prepare", project.file, *setting, cwd=project.folder)
            assert again.code == 0, again
            assert not again.traced, again.last
            found = contents(folder)
            assert found.keys() == expected.keys(), f"left over or missing: {found.keys() ^ expected.keys()}"
            assert found == expected, f"differs: {[name for name in found if found[name] != expected[name]]}"


@pytest.mark.scorecard
def test_at_random_times(score: Score, lab: Lab, project: Project, tmp_path: Path) -> None:
    """From the first line to the report; every second run builds its own token store; a third is killed twice."""
    times = []
    for again in range(0 if ONLY and not score.numbers() else 3):
        began, out = time.monotonic(), project.new()
        assert project.run(out, "--set", f"data.store={tmp_path / str(again)}").code == 0
        times.append(time.monotonic() - began)
    total, kills = max(times, default=0), 0
    for trial in score.numbers():
        out, dice = project.new(), score.dice(trial)
        more = ("--set", f"data.store={tmp_path / f'store-{trial}'}") if trial % 2 else ()
        moments = [dice.uniform(0, total) for _ in range(1 + (trial % 3 == 0))]
        with score.trial(f"trial {trial}: killed after {', '.join(f'{m:.3f} s' for m in moments)}"):
            for moment in moments:
                began = (out / "provenance.json").is_file()
                arguments = ("resume", out) if began else ("run", project.file, "--out", out, *more)
                running = lab.start(*arguments, cwd=project.folder)
                time.sleep(moment)
                running.send(signal.SIGKILL)
                kills += running.wait().code == -signal.SIGKILL
            began = (out / "provenance.json").is_file()
            ended = project.again(out, *(() if began else more))
            assert ended.code == 0, ended
            assert not ended.traced, ended.last
            project.is_alike(out)
            shutil.rmtree(out)
    print(f"{kills} kills struck")
