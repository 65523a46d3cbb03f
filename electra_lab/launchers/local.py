"""Commands as processes of this machine."""

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from electra_lab.launchers._command import ended, log_of, signals_held, variables
from registry import Command, Outcome, launchers
from registry.errors import ConfigError

GRACE = 60.0  # seconds that a run has to save, once it was asked to stop
LOOK = 0.05  # seconds between two looks for commands that have ended

Place = tuple[dict[str, str], tuple[int, ...]]  # an environment, and cores or ()


@launchers.register("local")
@dataclass(kw_only=True)
class Local:
    """Run commands in processes on this machine.

    workers  number of processes; each needs the memory of a whole run
    threads  per process, for OpenMP, MKL and OpenBLAS; tokenizers use one
    gpus     number of GPUs of CUDA_VISIBLE_DEVICES or nvidia-smi to use, assigned to the workers in turn. None: all,
             0: none
    pin      bind each process to `threads` separate cores, if there are enough for all. Turn it off if other work,
             such as another local launcher's, is bound to cores of this machine

    A running command has a minute to save once it is asked to stop. A second Ctrl-C ends it at once. If the launcher is
    killed, running commands continue to their end.
    """

    workers: Annotated[int, Field(ge=1, le=100_000)] = 1
    threads: Annotated[int, Field(ge=1, le=100_000)] = 1
    gpus: Annotated[int, Field(ge=0, le=100_000)] | None = None
    pin: bool = True

    here = True

    def check(self) -> None:
        _devices(self.gpus)

    def __call__(self, commands: Mapping[str, Command], folder: Path, /) -> Iterator[tuple[str, Outcome]]:
        waiting, free = (
            deque(commands),
            deque(_places(min(self.workers, len(commands)), self.threads, self.gpus, self.pin)),
        )
        running = dict[str, tuple[subprocess.Popen[bytes], Place]]()
        try:
            while waiting or running:
                # Collect the commands that have ended, and start others in their places.
                outcomes = list[tuple[str, Outcome]]()
                for name, (process, place) in [*running.items()]:
                    if process.poll() is not None:
                        del running[name]
                        _kill(process)
                        free.append(place)
                        outcomes.append((name, ended(process.returncode, log_of(folder, name))))
                while waiting and free:
                    name, place = waiting.popleft(), free.popleft()
                    with signals_held():
                        running[name] = _start(commands[name], log_of(folder, name), place), place
                yield from outcomes  # now that all places are taken: the consumer may take its time
                if not outcomes:
                    time.sleep(LOOK)
        finally:
            _end([process for process, _ in running.values()])


def _start(command: Command, log: Path, place: Place) -> subprocess.Popen[bytes]:
    environment, cores = place
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,  # protects it from the terminal's Ctrl-C, which the launcher handles
        )  # fmt: skip
    if cores:
        with suppress(OSError):  # it has ended already, or the cores are no longer allowed
            os.sched_setaffinity(process.pid, cores)  # before any library counts them
    return process


def _end(running: Iterable[subprocess.Popen[bytes]]) -> None:
    """Ask processes to stop, wait, and kill those that do not."""
    deadline = time.monotonic() + GRACE
    try:
        for process in running:
            process.terminate()
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    finally:  # also at a second Ctrl-C
        for process in running:
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, if it is still there, and those that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _places(number: int, threads: int, gpus: int | None, pin: bool) -> list[Place]:
    """Return the share of the machine that each worker gets: its environment, and its cores or ()."""
    allowed = sorted(os.sched_getaffinity(0)) if pin and hasattr(os, "sched_getaffinity") else []
    pinned = number * threads <= len(allowed)
    devices = _devices(gpus)
    places = list[Place]()
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
        done = subprocess.run(["nvidia-smi", "-L"], timeout=30, check=True, **quiet)
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())
