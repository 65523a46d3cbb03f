"""Pieces of work by which a launcher's laws are tested, and what they leave in their folder.

They stand here and not in registry.testing, where the laws are: what a worker imports must be quick, and that loads
torch and pytest.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from registry import Outcome


def behave(folder: str, piece: str) -> Outcome:
    """Do what the id says before its dash: end in one of several ways, or come back with that outcome."""
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


def tell(folder: str, piece: str, *, names: tuple[str, ...] = ()) -> Outcome:
    """Write down where this runs, with the environment's variables `names`."""
    where = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "cpus": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        "environment": {name: os.environ.get(name) for name in names},
        "torch": "torch" in sys.modules,
    }
    _write(Path(folder, f"{piece}.json"), json.dumps(where))
    return Outcome("done")


def meet(folder: str, piece: str, *, number: int, patience: float, names: tuple[str, ...] = ()) -> Outcome:
    """Tell, and wait until `number` pieces have done that; fail if they do not."""
    tell(folder, piece, names=names)
    if until(lambda: len(list(Path(folder).glob("*.json"))) >= number, patience):
        return Outcome("done")
    return Outcome("failed", f"{number} pieces were never there at once")


def crowd(folder: str, piece: str) -> Outcome:
    """Count the pieces that run while this one does; the outcome's text is their number."""
    mark = Path(folder, f"{piece}.here")
    mark.touch()
    time.sleep(0.1)
    number = len(list(Path(folder).glob("*.here")))
    mark.unlink()
    return Outcome("done", str(number))


def follow(folder: str, piece: str, *, patience: float) -> Outcome:
    """The piece `last` waits until there is a file `go`; others are done at once."""
    if piece != "last" or until(Path(folder, "go").exists, patience):
        return Outcome("done")
    return Outcome("failed", "what was done before was not told in time")


def linger(folder: str, piece: str, *, patience: float) -> Outcome:
    """Run until SIGTERM, as training does, then write the number of signals. `quick` only waits until another runs."""
    if piece == "quick":
        return Outcome("done" if until(lambda: any(Path(folder).glob("*.json")), patience) else "failed")
    signals: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    tell(folder, piece)
    until(lambda: bool(signals), patience)
    time.sleep(0.1)  # what saving takes
    _write(Path(folder, f"{piece}.stopped"), str(len(signals)))
    signal.signal(signal.SIGTERM, before)
    return Outcome("preempted", "saved")


def until(true: Callable[[], bool], patience: float) -> bool:
    """Whether it came true within `patience` seconds."""
    end = time.monotonic() + patience
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def _write(path: Path, text: str) -> None:
    """All at once, so that nobody reads the half of it."""
    path.with_suffix(".tmp").write_text(text, encoding="utf-8")
    path.with_suffix(".tmp").rename(path)
