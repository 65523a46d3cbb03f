"""The local launcher beyond the laws of all launchers: processes that stay, cores, GPUs, and every kind of end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from electra_lab.launchers import _probes
from electra_lab.launchers import local as module
from electra_lab.launchers.local import local
from registry import Outcome
from registry.errors import ConfigError
from tests.helpers import ROOT

PATIENCE = 20.0
linger = partial(_probes.linger, patience=PATIENCE)
needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
pins = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no process to cores")


def told(folder: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}


def gone(pid: int) -> bool:
    """It has ended; where a test's orphans have no parent that cares, it may lie there dead."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


# Work for the workers.


def stubborn(folder: str, piece: str) -> Outcome:
    """It takes no notice of SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return _probes.meet(folder, piece, number=99, patience=PATIENCE)


def asleep(folder: str, piece: str) -> Outcome:
    """It waits in one long system call, as training does for a device or a disk."""

    def stop(number: int, frame: object) -> None:
        Path(folder, f"{piece}.stopped").touch()
        raise InterruptedError

    signal.signal(signal.SIGTERM, stop)
    _probes.tell(folder, piece)
    time.sleep(PATIENCE)
    return Outcome("done")


def frozen(folder: str, piece: str) -> Outcome:
    """It takes no notice of anything."""
    _probes.tell(folder, piece)
    os.kill(os.getpid(), signal.SIGSTOP)
    return Outcome("done")


def succeed(folder: str, piece: str) -> Outcome:
    """`dies` dies when `stays` is there, which stays until `after` has come."""
    _probes.tell(folder, piece, names=("CUDA_VISIBLE_DEVICES",))
    awaited = {"stays": "after", "dies": "stays"}.get(piece, piece)
    assert _probes.until(Path(folder, f"{awaited}.json").exists, PATIENCE)
    if piece == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return Outcome("done")


def outlive(folder: str, piece: str) -> Outcome:
    """`slow` waits until the process of `quick` is gone altogether."""
    _probes.tell(folder, piece)
    if piece == "quick":
        return Outcome("done" if _probes.until(Path(folder, "slow.json").exists, PATIENCE) else "failed")
    other = Path(folder, "quick.json")
    assert _probes.until(other.exists, PATIENCE)
    pid = json.loads(other.read_text(encoding="utf-8"))["pid"]
    return Outcome("done" if _probes.until(lambda: not Path(f"/proc/{pid}").exists(), 5.0) else "failed")


def orphan(folder: str, piece: str) -> Outcome:
    """Die and leave a process that holds all that this one had open."""
    if os.fork() == 0:
        _probes.tell(folder, piece)
        time.sleep(PATIENCE)
        os._exit(0)
    assert _probes.until(Path(folder, f"{piece}.json").exists, PATIENCE)
    os.kill(os.getpid(), signal.SIGSEGV)
    return Outcome("done")


def command(folder: str, piece: str) -> Outcome:
    return Outcome("done", " ".join(sys.argv))


def nothing(folder: str, piece: str) -> Any:
    return None


# Processes.


def test_a_process_does_many_pieces_and_loads_nothing_heavy(tmp_path: Path) -> None:
    assert len(list(local(_probes.tell, str(tmp_path), [f"piece-{n}" for n in range(5)]))) == 5
    assert len({where["pid"] for where in told(tmp_path).values()}) == 1
    assert not any(where["torch"] for where in told(tmp_path).values())


def test_a_piece_costs_next_to_nothing(tmp_path: Path) -> None:
    results = local(_probes.behave, str(tmp_path), [f"done-{n}" for n in range(201)])
    next(results)
    begin = time.perf_counter()
    assert len(list(results)) == 200
    assert (time.perf_counter() - begin) / 200 < 0.02


@pytest.mark.parametrize(("pieces", "workers", "processes"), [(0, 2, 0), (1, 8, 1), (4, 2, 2)])
def test_no_more_processes_than_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int, workers: int, processes: int
) -> None:
    started = []

    class Counted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            started.append(args)
            super().__init__(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", Counted)
    list(local(_probes.tell, str(tmp_path), [str(n) for n in range(pieces)], workers=workers, gpus=0))
    assert len(started) == processes


def test_pieces_begin_in_order(tmp_path: Path) -> None:
    ids = [f"done-{n}" for n in (3, 1, 2)]
    assert [name for name, _ in local(_probes.behave, str(tmp_path), ids)] == ids


@needs_proc
def test_a_worker_that_has_no_more_to_do_ends_while_others_work(tmp_path: Path) -> None:
    assert dict(local(outlive, str(tmp_path), ["slow", "quick"], workers=2)) == {
        "slow": Outcome("done"),
        "quick": Outcome("done"),
    }


def test_the_environment(tmp_path: Path) -> None:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TOKENIZERS_PARALLELISM", "HOME")
    list(local(partial(_probes.tell, names=names), str(tmp_path), ["one"], threads=3))
    assert told(tmp_path)["one"]["environment"] == {
        **dict.fromkeys(names[:3], "3"),
        "TOKENIZERS_PARALLELISM": "false",
        "HOME": os.environ.get("HOME"),
    }


def test_the_command_is_the_launchers(tmp_path: Path) -> None:
    """Runs write down the command that they came from."""
    assert dict(local(command, str(tmp_path), ["one"])) == {"one": Outcome("done", " ".join(sys.argv))}


# Cores and GPUs.


def test_cores_are_dealt_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7, 2, 1, 5, 9}, raising=False)

    def cpus(number: int, threads: int, pin: bool = True) -> list[tuple[int, ...]]:
        return [place.cpus for place in module._places(number, threads, None, pin)]

    assert cpus(2, 2) == [(1, 2), (5, 7)]
    assert cpus(5, 1) == [(1,), (2,), (5,), (7,), (9,)]
    assert cpus(3, 2) == cpus(6, 1)[:3] == [()] * 3  # not enough for all: none
    assert cpus(2, 2, pin=False) == [(), ()]


@pins
def test_cores_are_kept(tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    list(local(_probes.tell, str(tmp_path), ["pinned"]))
    list(local(_probes.tell, str(tmp_path), ["free"], pin=False))
    list(local(_probes.tell, str(tmp_path), ["many"], threads=len(allowed) + 1))
    cpus = {name: where["cpus"] for name, where in told(tmp_path).items()}
    assert cpus == {"pinned": allowed[:1], "free": allowed, "many": allowed}
    assert sorted(os.sched_getaffinity(0)) == allowed


def test_workers_take_turns_with_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, GPU-ab")
    work = partial(_probes.meet, number=3, patience=PATIENCE, names=("CUDA_VISIBLE_DEVICES",))
    list(local(work, str(tmp_path), ["one", "two", "three"], workers=3))
    given = {name: where["environment"]["CUDA_VISIBLE_DEVICES"] for name, where in told(tmp_path).items()}
    assert given == {"one": "4", "two": "GPU-ab", "three": "4"}


def test_a_new_worker_has_the_gpu_of_the_dead_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    outcomes = dict(local(succeed, str(tmp_path), ["stays", "dies", "after"], workers=2))
    assert {name: outcome.status for name, outcome in outcomes.items()} == {
        "stays": "done",
        "dies": "lost",
        "after": "done",
    }
    given = {name: where["environment"]["CUDA_VISIBLE_DEVICES"] for name, where in told(tmp_path).items()}
    assert given == {"stays": "4", "dies": "5", "after": "5"}


@pytest.mark.parametrize(
    ("visible", "smi", "gpus", "expected"),
    [
        (None, "GPU 0: H200\n  MIG 1g.18gb Device 0:\nGPU 1: H200\n", None, ["0", "1"]),
        (None, "GPU 0: H200\nGPU 1: H200\n", 1, ["0"]),
        (None, "GPU 0: H200\n", 0, [""]),
        (None, "GPU 0: H200\n", 2, None),
        (None, "", None, []),
        (None, "", 1, None),
        (None, None, None, []),
        ("", "GPU 0: H200\n", None, []),
        ("-1", "GPU 0: H200\n", None, []),
        ("3,-1,5", "GPU 0: H200\n", None, ["3"]),
        ("MIG-a,MIG-b", None, None, ["MIG-a", "MIG-b"]),
    ],
)
def test_gpus_are_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    smi: str | None,
    gpus: int | None,
    expected: list[str] | None,
) -> None:
    if smi is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '{smi}'\n", encoding="utf-8")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if expected is None:
        with pytest.raises(ConfigError, match=rf"gpus is {gpus}, but"):
            module._devices(gpus)
    else:
        assert module._devices(gpus) == expected


# What goes wrong.


def test_how_a_process_died_is_told(tmp_path: Path) -> None:
    outcomes = dict(local(_probes.behave, str(tmp_path), ["killed", "gone"]))
    assert outcomes["killed"].error.startswith("the worker process died by signal 9 (SIGKILL; ")
    assert outcomes["gone"].error == "the worker process ended with exit code 3 before its piece was done."


@needs_proc
def test_a_process_that_dies_takes_its_own_with_it(tmp_path: Path) -> None:
    """A process of the data loader's, say, holds the dead one's connection open; its death is seen all the same."""
    begin = time.perf_counter()
    outcomes = dict(local(orphan, str(tmp_path), ["one"]))
    assert time.perf_counter() - begin < PATIENCE / 2
    assert outcomes["one"] == Outcome("lost", "the worker process died by signal 11 (SIGSEGV).")
    assert _probes.until(lambda: gone(told(tmp_path)["one"]["pid"]), 5.0)


def test_work_that_no_worker_can_import_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(folder: str, piece: str) -> Outcome:
        return Outcome("done")

    nowhere = types.ModuleType("nowhere")
    nowhere.work, work.__module__, work.__qualname__ = work, "nowhere", "work"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nowhere", nowhere)
    reason = "a worker process cannot import the work (ModuleNotFoundError: No module named 'nowhere')."
    assert dict(local(work, str(tmp_path), ["one", "two"])) == dict.fromkeys(("one", "two"), Outcome("failed", reason))


def test_work_without_an_outcome_fails(tmp_path: Path) -> None:
    reason = "TypeError: the work returned NoneType and not an Outcome"
    assert dict(local(nothing, str(tmp_path), ["one"])) == {"one": Outcome("failed", reason)}


@needs_proc
def test_nothing_is_left_open(tmp_path: Path) -> None:
    def ours() -> tuple[set[str], str]:
        children = Path(f"/proc/self/task/{os.getpid()}/children")
        return set(os.listdir("/proc/self/fd")), children.read_text(encoding="utf-8") if children.exists() else ""

    before = ours()
    list(local(_probes.behave, str(tmp_path), ["done-1", "killed-1", "raises-1", "done-2"], workers=2))
    with closing(local(linger, str(tmp_path), ["slow", "quick", "later"], workers=2)) as results:
        next(results)
    with pytest.raises(Exception, match="lambda"):
        list(local(lambda folder, piece: Outcome("done"), str(tmp_path), ["one"]))
    assert ours() == before


# The end.


def test_what_runs_is_asked_once(tmp_path: Path) -> None:
    """A second SIGTERM would mean: do not save."""
    with closing(local(linger, str(tmp_path), ["slow", "quick"], workers=2)) as results:
        assert next(results) == ("quick", Outcome("done"))
    assert (tmp_path / "slow.stopped").read_text(encoding="utf-8") == "1"


def test_what_waits_is_woken(tmp_path: Path, program: Any) -> None:
    program("asleep").kill()
    assert _probes.until(lambda: len(list(tmp_path.glob("*.stopped"))) == 2, 5.0)


def test_work_that_handles_no_sigterm_ends_by_it(tmp_path: Path) -> None:
    """Also where the launcher itself takes no notice of it."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        work = partial(_probes.follow, patience=PATIENCE)
        begin = time.perf_counter()
        with closing(local(work, str(tmp_path), ["last", "other"], workers=2)) as results:
            assert next(results) == ("other", Outcome("done"))
        assert time.perf_counter() - begin < PATIENCE / 2
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("work", [stubborn, frozen])
def test_work_that_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Any) -> None:
    monkeypatch.setattr(module, "GRACE", 0.3)
    results = local(work, str(tmp_path), ["one"])
    monkeypatch.setattr(module, "wait", lambda *_, **__: _probes.until(lambda: bool(told(tmp_path)), 5.0) and 1 / 0)
    begin = time.perf_counter()
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert time.perf_counter() - begin < PATIENCE / 2
    assert gone(told(tmp_path)["one"]["pid"])


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Any]:
    """program(work, grace) starts a launcher with two pieces in a process of its own and waits until they run."""
    started: list[subprocess.Popen[str]] = []

    def start(work: str, grace: float = 60.0) -> subprocess.Popen[str]:
        lines = (
            "from functools import partial",
            "from electra_lab.launchers import _probes, local as module",
            "from tests.electra_lab.launchers import test_local as tests",
            f"module.GRACE = {grace}",
            f"print(list(module.local(tests.{work}, {str(tmp_path)!r}, ['one', 'two', 'three'], workers=2)))",
        )
        process = subprocess.Popen(
            [sys.executable, "-c", "\n".join(lines)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert _probes.until(lambda: len(told(tmp_path)) == 2, PATIENCE)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
    for where in told(tmp_path).values():
        if not gone(where["pid"]):
            os.kill(where["pid"], signal.SIGKILL)


def all_gone(folder: Path) -> bool:
    return all(gone(where["pid"]) for where in told(folder).values())


@needs_proc
def test_workers_end_with_a_launcher_that_is_killed(tmp_path: Path, program: Any) -> None:
    program("linger").kill()
    assert _probes.until(lambda: all_gone(tmp_path), 5.0)
    assert [(tmp_path / f"{name}.stopped").read_text(encoding="utf-8") for name in ("one", "two")] == ["1", "1"]
    assert not (tmp_path / "three.json").exists()


@needs_proc
def test_stubborn_workers_end_with_a_launcher_that_is_killed(tmp_path: Path, program: Any) -> None:
    program("stubborn", grace=0.3).kill()
    assert _probes.until(lambda: all_gone(tmp_path), 5.0)


@needs_proc
def test_ctrl_c_in_a_terminal(tmp_path: Path, program: Any) -> None:
    """It goes to all processes of the group; workers are asked by their launcher alone."""
    launcher = program("linger")
    os.killpg(launcher.pid, signal.SIGINT)
    assert "KeyboardInterrupt" in launcher.communicate(timeout=PATIENCE)[1]
    assert [(tmp_path / f"{name}.stopped").read_text(encoding="utf-8") for name in ("one", "two")] == ["1", "1"]
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
