"""The local launcher beyond the laws of all launchers: cores, GPUs, and all ways to end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from electra_lab.launchers import local as module
from electra_lab.launchers.local import Local
from electra_lab.testing import probes
from electra_lab.testing.launchers import reported
from registry import Outcome
from registry.errors import ConfigError
from tests.helpers import ROOT

PATIENCE = 20.0
needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")


def shell(folder: Path, scripts: dict[str, str], **options: Any) -> Iterator[tuple[str, Outcome]]:
    return Local(**options)({name: ["sh", "-c", f"cd {folder}; {text}"] for name, text in scripts.items()}, folder)


def gone(pid: int) -> bool:
    """Return True if a process has ended; it may be a zombie, if nobody waits for a test's orphans."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


def test_the_environment_of_a_command(tmp_path: Path) -> None:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TOKENIZERS_PARALLELISM", "HOME")
    list(Local(threads=3)(probes.commands(probes.report, tmp_path, ["one"], *names), tmp_path))
    expected = dict(zip(names, ("3", "3", "3", "false", os.environ.get("HOME")), strict=True))
    assert reported(tmp_path)["one"]["environment"] == expected


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


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no process to cores")
def test_cores_are_kept(tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    many = len(allowed) + 1
    for name, options in {"pinned": {}, "free": {"pin": False}, "many": {"threads": many}}.items():
        list(Local(**options)(probes.commands(probes.report, tmp_path, [name]), tmp_path))
    cpus = {name: where["cpus"] for name, where in reported(tmp_path).items()}
    assert cpus == {"pinned": allowed[:1], "free": allowed, "many": allowed}
    assert sorted(os.sched_getaffinity(0)) == allowed


def test_a_command_takes_over_the_gpu_of_one_that_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    note, wait = "echo $CUDA_VISIBLE_DEVICES >", "while [ ! -e {} ]; do sleep 0.02; done"
    scripts = {
        "stays": f"{note} stays; {wait.format('after')}", "dies": f"{note} dies; {wait.format('stays')}; kill -9 $$",
        "after": f"{note} after",
    }  # fmt: skip
    outcomes = dict(shell(tmp_path, scripts, workers=2))
    assert {name: outcome.code for name, outcome in outcomes.items()} == {"stays": 0, "dies": -9, "after": 0}
    assert {name: (tmp_path / name).read_text() for name in scripts} == {"stays": "4\n", "dies": "5\n", "after": "5\n"}


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


@needs_proc
def test_a_command_that_dies_takes_its_own_processes_with_it(tmp_path: Path) -> None:
    """For example those of a data loader, which keep its files open."""
    outcomes = dict(shell(tmp_path, {"one": f"sleep {PATIENCE} & echo $! > child; kill -11 $$", "last": ""}))
    assert {name: outcome.code for name, outcome in outcomes.items()} == {"one": -11, "last": 0}
    assert probes.until(lambda: gone(int((tmp_path / "child").read_text())), 5.0)


@needs_proc
def test_nothing_is_left_open(tmp_path: Path) -> None:
    def ours() -> tuple[set[str], str]:
        children = Path(f"/proc/self/task/{os.getpid()}/children")
        return set(os.listdir("/proc/self/fd")), children.read_text(encoding="utf-8") if children.exists() else ""

    before = ours()
    list(Local(workers=2)(probes.commands(probes.behave, tmp_path, ["0-1", "killed-1", "raises-1"]), tmp_path))
    slow = probes.commands(probes.linger, tmp_path, ["slow", "quick", "later"], PATIENCE)
    with closing(Local(workers=2)(slow, tmp_path)) as results:
        next(results)
    assert (tmp_path / "slow.stopped").read_text() == "1", "a second SIGTERM would mean not to save"
    with pytest.raises(FileNotFoundError):
        list(Local()({"one": ["/there/is/no/such/program"]}, tmp_path))
    assert ours() == before


def test_a_command_that_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE", 0.3)
    deaf = {
        "deaf": f"trap '' TERM; echo $$ > pid; sleep {PATIENCE}",
        "quick": "while [ ! -s pid ]; do sleep 0.02; done",
    }
    begin = time.perf_counter()
    with closing(shell(tmp_path, deaf, workers=2)) as results:
        assert next(results) == ("quick", Outcome(0))
    assert time.perf_counter() - begin < PATIENCE / 2
    assert gone(int((tmp_path / "pid").read_text()))


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Any]:
    """program(script) starts a launcher of two such commands in a separate process and waits until they run."""
    started: list[subprocess.Popen[str]] = []

    def start(script: str) -> subprocess.Popen[str]:
        text = f"""
from pathlib import Path
from electra_lab.launchers.local import Local
commands = {{name: ["sh", "-c", {script!r}, name] for name in ("one", "two", "three")}}
print(list(Local(workers=2)(commands, Path())))
"""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [sys.executable, "-c", text], env=environment, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
            start_new_session=True,
        )  # fmt: skip
        started.append(process)
        assert probes.until(lambda: len(list(tmp_path.glob("*.pid"))) == 2, PATIENCE)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_command_whose_launcher_is_killed_goes_on(tmp_path: Path, program: Any) -> None:
    program("echo $$ > $0.pid; while [ ! -e go ]; do sleep 0.02; done; echo done > $0.end").kill()
    (tmp_path / "go").touch()
    assert probes.until(lambda: len(list(tmp_path.glob("*.end"))) == 2, 5.0)
    assert not (tmp_path / "three.pid").exists()


@pytest.mark.parametrize("deaf", [False, True])
def test_a_first_ctrl_c_lets_commands_save_and_a_second_is_in_a_hurry(tmp_path: Path, program: Any, deaf: bool) -> None:
    """It goes to all processes of the terminal's group; commands are stopped only by their launcher."""
    act = "" if deaf else "echo saved > $0.stopped; exit"
    launcher = program(f"trap '{act}' TERM; trap 'echo no > $0.int' INT; echo $$ > $0.pid; "
                       "while true; do sleep 0.02; done")  # fmt: skip
    os.killpg(launcher.pid, signal.SIGINT)
    if deaf:
        time.sleep(0.5)
        assert launcher.poll() is None
        os.killpg(launcher.pid, signal.SIGINT)
    assert "KeyboardInterrupt" in launcher.communicate(timeout=PATIENCE)[1]
    assert len(list(tmp_path.glob("*.stopped"))) == (0 if deaf else 2)
    assert not list(tmp_path.glob("*.int"))
    assert all(gone(int(file.read_text())) for file in tmp_path.glob("*.pid"))


def test_a_command_that_a_signal_meets_at_its_start_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[subprocess.Popen[bytes]]()

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    commands = {"one": ["sleep", str(PATIENCE)], "two": ["sleep", str(PATIENCE)]}
    with pytest.raises(KeyboardInterrupt):
        list(Local(workers=2)(commands, tmp_path))
    assert [process.returncode for process in started] == [-signal.SIGTERM]
