"""Pieces of work in processes on this machine."""

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from multiprocessing.connection import Pipe, wait
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from electra_lab.launchers import _worker
from electra_lab.launchers._piece import variables
from registry import Outcome, Work, launchers
from registry.errors import ConfigError

GRACE = 60.0  # seconds that a run has to save, once it was asked to stop


@launchers.register("local")
@dataclass(kw_only=True)
class Local:
    """Run pieces of work in processes on this machine. Each process does one piece after the other.

    workers  number of processes; each needs the memory of a whole run
    threads  per process, for OpenMP, MKL and OpenBLAS; tokenizers use one
    gpus     number of GPUs of CUDA_VISIBLE_DEVICES or nvidia-smi to use, assigned to the workers in turn. None: all,
             0: none
    pin      bind each process to `threads` separate cores, if there are enough for all. Turn it off if other work,
             such as another local launcher's, is bound to cores of this machine

    A running piece has a minute to save once it is asked to stop. A second Ctrl-C ends it at once.
    """

    workers: Annotated[int, Field(ge=1, le=100_000)] = 1
    threads: Annotated[int, Field(ge=1, le=100_000)] = 1
    gpus: Annotated[int, Field(ge=0, le=100_000)] | None = None
    pin: bool = True

    here = True

    def check(self) -> None:
        _devices(self.gpus)

    def __call__(self, work: Work, folder: str, ids: Sequence[str], /) -> Iterator[tuple[str, Outcome]]:
        places = _places(min(self.workers, len(ids)), self.threads, self.gpus, self.pin)
        waiting = deque(ids)
        team: list[_Worker] = []
        try:
            for place in places:
                team.append(_Worker(*place))
                team[-1].give(work, folder, waiting.popleft())
            while busy := [worker for worker in team if worker.piece is not None]:
                # Collect outcomes, and give new work to the workers that are free.
                wait([worker.connection for worker in busy], timeout=0.5)  # then look anyway: see _Worker.outcome
                came: list[tuple[str, Outcome]] = []
                for worker in busy:
                    outcome = worker.outcome()
                    if worker.piece is None or outcome is None:
                        continue
                    came.append((worker.piece, outcome))
                    worker.piece = None
                    if not waiting:
                        worker.connection.close()  # so that it ends: others can use its memory and its GPU
                        continue
                    if not worker.alive():
                        team.remove(worker)
                        worker = _Worker(*worker.place)
                        team.append(worker)
                    worker.give(work, folder, waiting.popleft())
                for worker in team:
                    worker.alive()  # collects those that have ended
                yield from came  # after all have new work: the consumer may take its time
        finally:
            _end(team)


def _places(number: int, threads: int, gpus: int | None, pin: bool) -> list[tuple[dict[str, str], tuple[int, ...]]]:
    """Return the share of the machine that each worker gets: its environment, and its cores or ()."""
    allowed = sorted(os.sched_getaffinity(0)) if pin and hasattr(os, "sched_getaffinity") else []
    pinned = number * threads <= len(allowed)
    devices = _devices(gpus)
    places = []
    for n in range(number):
        environment = {**os.environ, **variables(threads)}
        if devices:
            environment["CUDA_VISIBLE_DEVICES"] = devices[n % len(devices)]
        places.append((environment, tuple(allowed[n * threads : (n + 1) * threads]) if pinned else ()))
    return places


def _devices(gpus: int | None) -> list[str]:
    """Return CUDA_VISIBLE_DEVICES of one worker after the other; empty if it is not to be set. Raises ConfigError."""
    if gpus == 0:
        return [""]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:  # CUDA itself stops at the first that does not exist
        names = (name.strip() for name in visible.split(","))
        devices = list(takewhile(lambda name: name not in ("", "-1"), names))
    else:
        devices = [str(n) for n in range(_nvidia_gpus())]
    if gpus is not None and gpus > len(devices):
        raise ConfigError(f"launcher 'local': gpus is {gpus}, but this machine has {len(devices)}. Ask for fewer.")
    return devices[:gpus]


def _nvidia_gpus() -> int:
    """Return the number of GPUs. Asking torch would take some of their memory."""
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], timeout=30, check=True, **quiet)
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


class _Worker:
    """A worker process, seen by its launcher. `piece` is the id of its current piece."""

    def __init__(self, environment: dict[str, str], cpus: tuple[int, ...]) -> None:
        self.place = environment, cpus
        self.piece: str | None = None
        self.connection, theirs = Pipe()
        ending, self._lifeline = Pipe(duplex=False)
        with theirs, ending:
            # -P: nothing must be imported from the worker's folder, which has a ray.py. A new session protects it from
            # the terminal's Ctrl-C, which the launcher handles.
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(Path(_worker.__file__)), str(theirs.fileno()), str(ending.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), ending.fileno()),
                start_new_session=True,
            )
        self._send((sys.path, sys.argv, cpus, GRACE))

    def give(self, work: Work, folder: str, piece: str) -> None:
        self.piece = piece
        self._send((work, folder, piece))

    def _send(self, message: object) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it has died; `outcome` will notice
            self.connection.send(message)

    def outcome(self) -> Outcome | None:
        """Return the outcome of its piece; None while it is running."""
        # The connection ends with the worker, unless a process that the work forked holds it open. Asked before the
        # connection: a message that a worker sent before it died can then be read.
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

    def stop(self) -> None:
        """Ask it to stop, by one SIGTERM if it is running a piece.

        It sends the signal to itself, as when the launcher is killed by SIGKILL. So it is asked only once: a second
        SIGTERM means to stop without saving.
        """
        self.connection.close()
        if self.piece is not None:
            self._lifeline.close()

    def end(self, patience: float) -> None:
        """Wait for its end, then kill it and the processes that it started."""
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
    finally:  # also at a second Ctrl-C
        for worker in team:
            worker.end(patience=0.0)


def _death(code: int) -> str:
    if code >= 0:
        return f"the worker process ended with exit code {code} before its work was finished."
    name = next((known.name for known in signal.Signals if known == -code), "a real-time signal")
    hint = "; the system sends it when memory runs out" if -code == signal.SIGKILL else ""
    return f"the worker process died by signal {-code} ({name}{hint})."
