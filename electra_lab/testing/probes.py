"""Pieces of work for the laws of launchers, which leave files in their folder.

Separate from the laws, which load torch and pytest: a worker must import quickly.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from electra_lab.storage.files import write_whole
from registry import Outcome


def behave(folder: str, piece: str) -> Outcome:
    """End in the way, or return the outcome, that the id names before its dash."""
    what, _, _ = piece.partition("-")
    if what == "raises":
        raise ValueError(f"{piece} is\nno good")
    if what == "exits":
        sys.exit(f"{piece} exits")
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "gone":
        os._exit(3)
    return Outcome(cast("Any", what), f"said {piece}")


def report(folder: str, piece: str, *, names: tuple[str, ...] = ()) -> Outcome:
    """Record where this runs, with the environment variables `names`."""
    where = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "cpus": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        "environment": {name: os.environ.get(name) for name in names},
        "torch": "torch" in sys.modules,
    }
    write_whole(Path(folder, f"{piece}.json"), json.dumps(where))
    return Outcome("done")


def meet(folder: str, piece: str, *, number: int, patience: float, names: tuple[str, ...] = ()) -> Outcome:
    """Record where this runs, and wait until `number` pieces have done so; otherwise fail."""
    report(folder, piece, names=names)
    if until(lambda: len(list(Path(folder).glob("*.json"))) >= number, patience):
        return Outcome("done")
    return Outcome("failed", f"{number} pieces were never there at once")


def crowd(folder: str, piece: str) -> Outcome:
    """Count the pieces that run at the same time; the outcome's text is their number."""
    mark = Path(folder, f"{piece}.here")
    mark.touch()
    time.sleep(0.1)
    number = len(list(Path(folder).glob("*.here")))
    mark.unlink()
    return Outcome("done", str(number))


def follow(folder: str, piece: str, *, patience: float) -> Outcome:
    """Let the piece `last` wait for a file `go`; other pieces are done at once."""
    if piece != "last" or until(Path(folder, "go").exists, patience):
        return Outcome("done")
    return Outcome("failed", "the earlier outcomes did not arrive in time")


def linger(folder: str, piece: str, *, patience: float) -> Outcome:
    """Run until SIGTERM, as training does, then write the number of signals. `quick` only waits until another runs."""
    if piece == "quick":
        return Outcome("done" if until(lambda: any(Path(folder).glob("*.json")), patience) else "failed")
    signals: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    report(folder, piece)
    until(lambda: bool(signals), patience)
    time.sleep(0.1)  # the time that saving takes
    write_whole(Path(folder, f"{piece}.stopped"), str(len(signals)))
    signal.signal(signal.SIGTERM, before)
    return Outcome("preempted", "saved")


def until(true: Callable[[], bool], patience: float) -> bool:
    """Return True if the condition came true within `patience` seconds."""
    end = time.monotonic() + patience
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
