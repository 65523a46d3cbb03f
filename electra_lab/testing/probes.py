"""Commands for the laws of launchers, which leave files in their folder: `probes.py WORK FOLDER NAME [OPTION]`.

Separate from the laws, which load torch and pytest: a command must import quickly.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path


def commands(work: Callable[..., None], folder: Path, names: Iterable[str], *options: object) -> dict[str, list[str]]:
    """Return the command that does this work for each name. `options` are text to it."""
    words = [sys.executable, "-P", __file__, work.__name__, str(folder)]
    return {name: [*words, name, *map(str, options)] for name in names}


def behave(folder: Path, name: str) -> None:
    """End in the way, or with the exit code, that the name says before its dash."""
    how, _, _ = name.partition("-")
    print(f"{name} says something", flush=True)
    if how == "raises":
        raise ValueError(f"{name} is no good")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(how))


def report(folder: Path, name: str, *variables: str) -> None:
    """Record where this runs, with some environment variables."""
    where = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "cpus": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        "environment": {variable: os.environ.get(variable) for variable in variables},
    }
    write(folder / f"{name}.json", json.dumps(where))


def meet(folder: Path, name: str, number: str, patience: str) -> None:
    """Record where this runs, and wait until `number` commands have done so; otherwise fail."""
    report(folder, name)
    if not until(lambda: len(list(folder.glob("*.json"))) >= int(number), float(patience)):
        sys.exit(f"{number} commands were never there at once")


def crowd(folder: Path, name: str) -> None:
    """Count the commands that run at the same time."""
    mark = folder / f"{name}.here"
    mark.touch()
    time.sleep(0.1)
    write(folder / f"{name}.number", str(len(list(folder.glob("*.here")))))
    mark.unlink()


def follow(folder: Path, name: str, patience: str) -> None:
    """Let the command `last` wait for a file `go`; others are done at once."""
    if name == "last" and not until((folder / "go").exists, float(patience)):
        sys.exit("the earlier outcomes did not arrive in time")


def linger(folder: Path, name: str, patience: str) -> None:
    """Run until SIGTERM, as training does, then write the number of signals. `quick` only waits until another runs."""
    if name == "quick":
        sys.exit(not until(lambda: any(folder.glob("*.json")), float(patience)))
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    report(folder, name)
    until(lambda: bool(signals), float(patience))
    time.sleep(0.1)  # the time that saving takes
    write(folder / f"{name}.stopped", str(len(signals)))
    sys.exit(75)


def write(file: Path, text: str) -> None:
    """Write a file that others see whole or not at all."""
    file.with_suffix(".part").write_text(text, encoding="utf-8")
    file.with_suffix(".part").rename(file)


def until(true: Callable[[], bool], patience: float) -> bool:
    """Return True if the condition came true within `patience` seconds."""
    end = time.monotonic() + patience
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
