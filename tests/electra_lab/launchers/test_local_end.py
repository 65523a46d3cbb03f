"""How the local launcher ends: saved, asked once, killed, and with no process left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import pytest

from electra_lab.launchers import _worker
from electra_lab.launchers import local as module
from electra_lab.testing import probes
from registry import Outcome
from tests.electra_lab.launchers.work import PATIENCE, frozen, gone, linger, local, needs_proc, noted
from tests.helpers import ROOT


def test_what_runs_is_asked_once(tmp_path: Path) -> None:
    """A second SIGTERM would mean: do not save."""
    with closing(local(linger, str(tmp_path), ["slow", "quick"], workers=2)) as results:
        assert next(results) == ("quick", Outcome("done"))
    assert (tmp_path / "slow.stopped").read_text(encoding="utf-8") == "1"


def test_what_waits_is_woken(tmp_path: Path, program: Any) -> None:
    program("asleep").kill()
    assert probes.until(lambda: len(list(tmp_path.glob("*.stopped"))) == 2, 5.0)


def test_work_that_handles_no_sigterm_ends_by_it(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        work = partial(probes.follow, patience=PATIENCE)
        begin = time.perf_counter()
        with closing(local(work, str(tmp_path), ["last", "other"], workers=2)) as results:
            assert next(results) == ("other", Outcome("done"))
        assert time.perf_counter() - begin < PATIENCE / 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_work_that_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE", 0.3)
    results = local(frozen, str(tmp_path), ["one"])
    monkeypatch.setattr(module, "wait", lambda *_, **__: probes.until(lambda: bool(noted(tmp_path)), 5.0) and 1 / 0)
    begin = time.perf_counter()
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert time.perf_counter() - begin < PATIENCE / 2
    assert gone(noted(tmp_path)["one"]["pid"])


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Any]:
    """program(work, grace) starts a launcher with two pieces in a process of its own and waits until they run."""
    started: list[subprocess.Popen[str]] = []

    def start(work: str, grace: float = 60.0) -> subprocess.Popen[str]:
        text = f"""
from electra_lab.launchers import local as module
from tests.electra_lab.launchers import work
module.GRACE = {grace}
print(list(module.Local(workers=2)(work.{work}, {str(tmp_path)!r}, ['one', 'two', 'three'])))
"""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [sys.executable, "-c", text], env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        assert probes.until(lambda: len(noted(tmp_path)) == 2, PATIENCE)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
    for where in noted(tmp_path).values():
        if not gone(where["pid"]):
            os.kill(where["pid"], signal.SIGKILL)


def all_gone(folder: Path) -> bool:
    return all(gone(where["pid"]) for where in noted(folder).values())


def asked(folder: Path) -> list[str]:
    return [(folder / f"{name}.stopped").read_text(encoding="utf-8") for name in ("one", "two")]


@needs_proc
def test_workers_end_with_a_launcher_that_is_killed(tmp_path: Path, program: Any) -> None:
    program("linger").kill()
    assert probes.until(lambda: all_gone(tmp_path), 5.0)
    assert asked(tmp_path) == ["1", "1"]
    assert not (tmp_path / "three.json").exists()


@needs_proc
def test_stubborn_workers_end_with_a_launcher_that_is_killed(tmp_path: Path, program: Any) -> None:
    program("stubborn", grace=0.3).kill()
    assert probes.until(lambda: all_gone(tmp_path), 5.0)


@needs_proc
def test_ctrl_c_in_a_terminal(tmp_path: Path, program: Any) -> None:
    """It goes to all processes of the group; workers are asked by their launcher alone."""
    launcher = program("linger")
    os.killpg(launcher.pid, signal.SIGINT)
    assert "KeyboardInterrupt" in launcher.communicate(timeout=PATIENCE)[1]
    assert asked(tmp_path) == ["1", "1"]
    assert all_gone(tmp_path)


@needs_proc
def test_a_second_ctrl_c_is_in_a_hurry(tmp_path: Path, program: Any) -> None:
    launcher = program("stubborn")
    os.killpg(launcher.pid, signal.SIGINT)
    time.sleep(0.5)
    assert launcher.poll() is None
    os.killpg(launcher.pid, signal.SIGINT)
    launcher.communicate(timeout=5.0)
    assert all_gone(tmp_path)


def test_a_worker_whose_launcher_dies_before_it_says_anything_ends_quietly() -> None:
    (reading, theirs), (ending, lifeline) = Pipe(), Pipe(duplex=False)
    with theirs, ending:
        descriptors = (theirs.fileno(), ending.fileno())
        command = [sys.executable, "-P", _worker.__file__, *map(str, descriptors)]
        process = subprocess.Popen(command, pass_fds=descriptors, stderr=subprocess.PIPE)
    reading.close()
    lifeline.close()
    assert process.communicate(timeout=PATIENCE)[1] == b""
    assert process.returncode == 0
