"""The local launcher beyond the laws of all launchers: reused processes, cores, GPUs, and all ways to end."""

import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import pytest

from electra_lab.launchers import _worker
from electra_lab.launchers import local as module
from electra_lab.launchers.local import Local
from electra_lab.testing import probes
from registry import Outcome
from registry.errors import ConfigError
from tests.electra_lab.launchers import work
from tests.electra_lab.launchers.work import PATIENCE, frozen, gone, linger, local, needs_proc, noted
from tests.helpers import ROOT

# Processes.


def test_a_process_does_many_pieces_and_loads_nothing_heavy(tmp_path: Path) -> None:
    assert len(list(local(probes.report, str(tmp_path), [f"piece-{n}" for n in range(5)]))) == 5
    assert len({where["pid"] for where in noted(tmp_path).values()}) == 1
    assert not any(where["torch"] for where in noted(tmp_path).values())


@pytest.mark.parametrize(("pieces", "workers", "processes"), [(0, 2, 0), (1, 8, 1), (4, 2, 2)])
def test_no_more_processes_than_pieces(tmp_path: Path, monkeypatch, pieces: int, workers: int, processes: int) -> None:
    started = []

    class Counted(subprocess.Popen):
        def __init__(self, *args: Any, **options: Any) -> None:
            started.append(args)
            super().__init__(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", Counted)
    list(local(probes.report, str(tmp_path), [str(n) for n in range(pieces)], workers=workers, gpus=0))
    assert len(started) == processes


@needs_proc
def test_a_worker_that_has_no_more_to_do_ends_while_others_work(tmp_path: Path) -> None:
    found = dict(local(work.outlive, str(tmp_path), ["slow", "quick"], workers=2))
    assert found == dict.fromkeys(("slow", "quick"), Outcome("done"))


def test_the_environment_and_the_command_of_the_launcher(tmp_path: Path) -> None:
    """Runs record the command that started them."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TOKENIZERS_PARALLELISM", "HOME")
    ((_, outcome),) = local(partial(work.command, names=names), str(tmp_path), ["one"], threads=3)
    assert outcome == Outcome("done", " ".join(sys.argv))
    expected = dict(zip(names, ("3", "3", "3", "false", os.environ.get("HOME")), strict=True))
    assert noted(tmp_path)["one"]["environment"] == expected


def test_cores_are_dealt_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7, 2, 1, 5, 9}, raising=False)

    def cpus(number: int, threads: int, pin: bool = True) -> list[tuple[int, ...]]:
        return [cores for _, cores in module._places(number, threads, None, pin)]

    assert cpus(2, 2) == [(1, 2), (5, 7)]
    assert cpus(5, 1) == [(1,), (2,), (5,), (7,), (9,)]
    assert cpus(3, 2) == cpus(6, 1)[:3] == [()] * 3  # not enough for all workers, so none
    assert cpus(2, 2, pin=False) == [(), ()]


def test_workers_take_turns_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, GPU-ab")
    environments = [environment for environment, _ in module._places(3, 1, None, False)]
    assert [environment["CUDA_VISIBLE_DEVICES"] for environment in environments] == ["4", "GPU-ab", "4"]


@work.pins
def test_cores_are_kept(tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    list(local(probes.report, str(tmp_path), ["pinned"]))
    list(local(probes.report, str(tmp_path), ["free"], pin=False))
    list(local(probes.report, str(tmp_path), ["many"], threads=len(allowed) + 1))
    cpus = {name: where["cpus"] for name, where in noted(tmp_path).items()}
    assert cpus == {"pinned": allowed[:1], "free": allowed, "many": allowed}
    assert sorted(os.sched_getaffinity(0)) == allowed


def test_a_new_worker_has_the_gpu_of_the_dead_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    outcomes = dict(local(work.succeed, str(tmp_path), ["stays", "dies", "after"], workers=2))
    statuses = {name: outcome.status for name, outcome in outcomes.items()}
    assert statuses == {"stays": "done", "dies": "lost", "after": "done"}
    given = {name: where["environment"]["CUDA_VISIBLE_DEVICES"] for name, where in noted(tmp_path).items()}
    assert given == {"stays": "4", "dies": "5", "after": "5"}


TWO = "GPU 0: H200\n  MIG 1g.18gb Device 0:\nGPU 1: H200\n"


@pytest.mark.parametrize(
    ("visible", "smi", "gpus", "expected"),
    [
        (None, TWO, None, ["0", "1"]), (None, TWO, 1, ["0"]), (None, TWO, 0, [""]), (None, TWO, 3, 2),
        (None, "", None, []), (None, "", 1, 0), (None, None, None, []), ("", TWO, None, []), ("-1", TWO, None, []),
        ("3,-1,5", TWO, None, ["3"]), ("MIG-a, MIG-b", None, None, ["MIG-a", "MIG-b"]), ("4,5", None, 3, 2),
    ],
)  # fmt: skip
def test_gpus_are_found(tmp_path: Path, monkeypatch, visible, smi, gpus, expected) -> None:
    """`nvidia-smi` prints `smi`; fewer GPUs than requested are refused, with their number."""
    if smi is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '{smi}'\n", encoding="utf-8")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if isinstance(expected, int):
        with pytest.raises(ConfigError, match=rf"launcher 'local': gpus is {gpus}, but .* has {expected}\."):
            Local(gpus=gpus).check()
    else:
        assert module._devices(gpus) == expected
        assert (Local.here, Local(gpus=gpus).check()) == (True, None)


def test_how_a_process_died_is_reported(tmp_path: Path) -> None:
    outcomes = dict(local(probes.behave, str(tmp_path), ["killed", "gone"]))
    assert outcomes["killed"].error.startswith("the worker process died by signal 9 (SIGKILL; ")
    assert outcomes["gone"].error == "the worker process ended with exit code 3 before its work was finished."


@needs_proc
def test_a_process_that_dies_takes_its_own_with_it(tmp_path: Path) -> None:
    """For example a data loader's process keeps the dead one's connection open; its death is noticed nevertheless."""
    begin = time.perf_counter()
    outcomes = dict(local(work.orphan, str(tmp_path), ["one", "last"]))
    assert time.perf_counter() - begin < PATIENCE / 2
    assert outcomes["one"] == Outcome("lost", "the worker process died by signal 11 (SIGSEGV).")
    assert outcomes["last"] == Outcome("done")
    assert probes.until(lambda: gone(noted(tmp_path)["one"]["pid"]), 5.0)


def test_work_that_no_worker_can_import_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(folder: str, piece: str) -> Outcome:
        return Outcome("done")

    nowhere = types.ModuleType("nowhere")
    nowhere.work, absent.__module__, absent.__qualname__ = absent, "nowhere", "work"
    monkeypatch.setitem(sys.modules, "nowhere", nowhere)
    failed = Outcome(
        "failed", "a worker process cannot import the work (ModuleNotFoundError: No module named 'nowhere')."
    )
    assert dict(local(absent, str(tmp_path), ["one", "two"])) == {"one": failed, "two": failed}


@needs_proc
def test_nothing_is_left_open(tmp_path: Path) -> None:
    def ours() -> tuple[set[str], str]:
        children = Path(f"/proc/self/task/{os.getpid()}/children")
        return set(os.listdir("/proc/self/fd")), children.read_text(encoding="utf-8") if children.exists() else ""

    before = ours()
    list(local(probes.behave, str(tmp_path), ["done-1", "killed-1", "raises-1", "done-2"], workers=2))
    with closing(local(linger, str(tmp_path), ["slow", "quick", "later"], workers=2)) as results:
        next(results)
    with pytest.raises(Exception, match="lambda"):
        list(local(lambda folder, piece: Outcome("done"), str(tmp_path), ["one"]))
    assert ours() == before


def test_what_runs_is_asked_once(tmp_path: Path) -> None:
    """A second SIGTERM would mean not to save."""
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
    """program(work, grace) starts a launcher with two pieces in a separate process and waits until they run."""
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
    """It goes to all processes of the group; workers are stopped only by their launcher."""
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
