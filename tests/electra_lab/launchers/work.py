"""Work for the processes of the local launcher, and checks of leftovers."""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from electra_lab.launchers.local import Local
from electra_lab.testing import probes
from registry import Outcome

PATIENCE = 20.0
linger = partial(probes.linger, patience=PATIENCE)
needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
pins = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no process to cores")


def local(work: Any, folder: str, ids: Sequence[str], **options: Any) -> Any:
    return Local(**options)(work, folder, ids)


def noted(folder: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}


def gone(pid: int) -> bool:
    """Return True if a process has ended; it may be a zombie, if nobody waits for a test's orphans."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


def stubborn(folder: str, piece: str) -> Outcome:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return probes.meet(folder, piece, number=99, patience=PATIENCE)


def asleep(folder: str, piece: str) -> Outcome:
    """Block in one long system call, as training does for a device or a disk."""

    def stop(number: int, frame: object) -> None:
        Path(folder, f"{piece}.stopped").touch()
        raise InterruptedError

    signal.signal(signal.SIGTERM, stop)
    probes.report(folder, piece)
    time.sleep(PATIENCE)
    return Outcome("done")


def frozen(folder: str, piece: str) -> Outcome:
    probes.report(folder, piece)
    os.kill(os.getpid(), signal.SIGSTOP)
    return Outcome("done")


def succeed(folder: str, piece: str) -> Outcome:
    """`dies` exits when `stays` has started, which stays until `after` has run."""
    probes.report(folder, piece, names=("CUDA_VISIBLE_DEVICES",))
    awaited = {"stays": "after", "dies": "stays"}.get(piece, piece)
    assert probes.until(Path(folder, f"{awaited}.json").exists, PATIENCE)
    if piece == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return Outcome("done")


def outlive(folder: str, piece: str) -> Outcome:
    """`slow` waits until the process of `quick` has ended completely."""
    probes.report(folder, piece)
    if piece == "quick":
        return Outcome("done" if probes.until(Path(folder, "slow.json").exists, PATIENCE) else "failed")
    other = Path(folder, "quick.json")
    assert probes.until(other.exists, PATIENCE)
    pid = json.loads(other.read_text(encoding="utf-8"))["pid"]
    return Outcome("done" if probes.until(lambda: not Path(f"/proc/{pid}").exists(), 5.0) else "failed")


def orphan(folder: str, piece: str) -> Outcome:
    """Exit and leave a process that keeps all open files of this one; the piece `last` is done at once."""
    if piece == "last":
        return Outcome("done")
    if os.fork() == 0:
        probes.report(folder, piece)
        time.sleep(PATIENCE)
        os._exit(0)
    assert probes.until(Path(folder, f"{piece}.json").exists, PATIENCE)
    os.kill(os.getpid(), signal.SIGSEGV)
    return Outcome("done")


def command(folder: str, piece: str, *, names: Sequence[str]) -> Outcome:
    probes.report(folder, piece, names=names)
    return Outcome("done", " ".join(sys.argv))
