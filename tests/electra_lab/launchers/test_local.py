"""The local launcher beyond the laws of all launchers: processes that stay, cores, GPUs, and every kind of end."""

import os
import subprocess
import sys
import time
import types
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from electra_lab.launchers import local as module
from electra_lab.launchers.local import Local
from electra_lab.testing import probes
from registry import Outcome
from registry.errors import ConfigError
from tests.electra_lab.launchers import work
from tests.electra_lab.launchers.work import PATIENCE, gone, linger, local, needs_proc, noted

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
    """Runs write down the command that they came from."""
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
    assert cpus(3, 2) == cpus(6, 1)[:3] == [()] * 3  # not enough for all: none
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
    """`nvidia-smi` prints `smi`; fewer GPUs than wanted are a refusal, with their number."""
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
    """A process of the data loader's, say, holds the dead one's connection open; its death is seen all the same."""
    begin = time.perf_counter()
    outcomes = dict(local(work.orphan, str(tmp_path), ["one"]))
    assert time.perf_counter() - begin < PATIENCE / 2
    assert outcomes["one"] == Outcome("lost", "the worker process died by signal 11 (SIGSEGV).")
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
