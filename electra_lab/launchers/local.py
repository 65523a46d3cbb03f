"""Pieces of work in processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from multiprocessing.connection import Pipe, wait
from pathlib import Path
from typing import Annotated

from pydantic import Field

from electra_lab.launchers import _worker
from registry import Outcome, launchers
from registry.errors import ConfigError

GRACE = 60.0  # seconds that a run has to save what it has, once it was asked to stop


@launchers.register("local")
def local(
    work: Callable[[str, str], Outcome],
    folder: str,
    ids: Sequence[str],
    /,
    *,
    workers: Annotated[int, Field(ge=1)] = 1,
    threads: Annotated[int, Field(ge=1)] = 1,
    gpus: Annotated[int, Field(ge=0)] | None = None,
    pin: bool = True,
) -> Iterator[tuple[str, Outcome]]:
    """Run pieces of work in processes of this machine, each of which does one piece after the other.

    workers  processes at a time; each needs the memory of a whole run
    threads  of each process: OpenMP, MKL and OpenBLAS keep to that number, tokenizers to one
    gpus     how many of those that CUDA_VISIBLE_DEVICES or nvidia-smi tells of; workers take turns to get one of them
             each. None: all that there are, 0: none
    pin      each process stays on `threads` cores of its own, where there are enough for all of them. Turn it off
             where other work is bound to cores of this machine too, as another local launcher's is

    What runs has a minute to save what it has, once it is asked to stop. A second Ctrl-C ends it at once.
    """
    places = _places(min(workers, len(ids)), threads, gpus, pin)
    waiting = deque(ids)
    team: list[_Worker] = []
    try:
        for place in places:
            team.append(_Worker(place))
            team[-1].give(work, folder, waiting.popleft())
        while busy := [worker for worker in team if worker.piece is not None]:
            wait([worker.connection for worker in busy], timeout=0.5)  # then look anyway: see _Worker.outcome
            came: list[tuple[str, Outcome]] = []
            for worker in busy:
                if worker.piece is None or (outcome := worker.outcome()) is None:
                    continue
                came.append((worker.piece, outcome))
                worker.piece = None
                if not waiting:
                    worker.retire()  # its memory and its GPU's are of use to the others
                    continue
                if not worker.alive():
                    team.remove(worker)
                    team.append(worker := _Worker(worker.place))
                worker.give(work, folder, waiting.popleft())
            for worker in team:
                worker.alive()  # collects those that have ended
            yield from came  # after all have got new work: the consumer may take its time
    finally:
        _end(team)


@dataclass(frozen=True)
class _Place:
    """What a worker has of the machine."""

    environment: dict[str, str]
    cpus: tuple[int, ...]


def _places(number: int, threads: int, gpus: int | None, pin: bool) -> list[_Place]:
    allowed = sorted(os.sched_getaffinity(0)) if pin and hasattr(os, "sched_getaffinity") else []
    pinned = number * threads <= len(allowed)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, str(threads)), "TOKENIZERS_PARALLELISM": "false"}
    devices = _devices(gpus)
    return [
        _Place(
            environment | ({"CUDA_VISIBLE_DEVICES": devices[n % len(devices)]} if devices else {}),
            tuple(allowed[n * threads : (n + 1) * threads]) if pinned else (),
        )
        for n in range(number)
    ]


def _devices(gpus: int | None) -> list[str]:
    """What CUDA_VISIBLE_DEVICES is to be, for one worker after the other; nothing if it is to be left alone."""
    if gpus == 0:
        return [""]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:  # CUDA itself reads as far as the first that does not exist
        found = list(takewhile(lambda name: name not in ("", "-1"), (name.strip() for name in visible.split(","))))
    else:
        found = [str(n) for n in range(_nvidia_gpus())]
    if gpus is not None and gpus > len(found):
        raise ConfigError(f"launcher 'local': gpus is {gpus}, but this machine shows {len(found)}. Ask for fewer.")
    return found[:gpus]


def _nvidia_gpus() -> int:
    """How many there are. torch would tell too, but then the launcher itself would hold a part of their memory."""
    try:
        command = ["nvidia-smi", "-L"]
        told = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in told.stdout.splitlines())


class _Worker:
    """A worker process as its launcher sees it. `piece` is the id of what it does."""

    def __init__(self, place: _Place) -> None:
        self.place = place
        self.piece: str | None = None
        self.connection, theirs = Pipe()
        ending, self._lifeline = Pipe(duplex=False)
        with theirs, ending:
            # -P: the worker's folder is no place to import from, there is a ray.py in it. A session of its own keeps
            # it from the terminal's Ctrl-C, which is the launcher's to answer.
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(Path(_worker.__file__)), str(theirs.fileno()), str(ending.fileno())],
                env=place.environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), ending.fileno()),
                start_new_session=True,
            )
        self._send((sys.path, sys.argv, place.cpus, GRACE))

    def give(self, work: Callable[[str, str], Outcome], folder: str, piece: str) -> None:
        self.piece = piece
        self._send((work, folder, piece))

    def _send(self, message: object) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it has died, as `outcome` will find
            self.connection.send(message)

    def outcome(self) -> Outcome | None:
        """What became of its piece; None while it is at it."""
        # The end of the connection tells of its death, unless a process that the work forked holds it open. Asked
        # before the connection: what a worker sent before it died can then be read.
        alive = self.alive()
        try:
            if self.connection.poll():
                outcome: Outcome = self.connection.recv()
                return outcome
        except (EOFError, ConnectionResetError):
            alive = False
        if alive:
            return None
        self.end(patience=5.0)
        return Outcome("lost", _death(self.process.returncode))

    def alive(self) -> bool:
        return self.process.poll() is None

    def retire(self) -> None:
        """Tell it that nothing more comes."""
        self.connection.close()

    def stop(self) -> None:
        """Ask it to stop, by one SIGTERM if it is at a piece. It sends that to itself: a launcher that is killed by
        SIGKILL asks in the same way, and none asks twice, which would mean to stop without saving."""
        self.connection.close()
        if self.piece is not None:
            self._lifeline.close()

    def end(self, patience: float) -> None:
        """Wait for its end, then bring that about, and the end of all processes that it left."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, patience))
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.connection.close()
        self._lifeline.close()


def _end(team: list[_Worker]) -> None:
    for worker in team:
        worker.stop()
    deadline = time.monotonic() + 1.1 * GRACE  # a worker ends itself after GRACE, if it still can
    try:
        for worker in team:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, deadline - time.monotonic()))
    finally:  # also at a second Ctrl-C, which is in a hurry
        for worker in team:
            worker.end(patience=0.0)


def _death(code: int) -> str:
    if code >= 0:
        return f"the worker process ended with exit code {code} before its piece was done."
    name = next((each.name for each in signal.Signals if each == -code), "a real-time signal")
    hint = "; so does the system when memory runs out" if -code == signal.SIGKILL else ""
    return f"the worker process died by signal {-code} ({name}{hint})."
