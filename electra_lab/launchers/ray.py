"""Commands as tasks of a Ray cluster: an existing one, or a temporary one on this machine."""

import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from electra_lab.launchers._command import signals_held
from registry import Command, Outcome, launchers
from registry.errors import ConfigError

SAVING = 70.0  # seconds to wait for commands to stop; launcher 'local', which runs them there, gives them a minute
STORE = 80 * 2**20  # bytes of shared memory for the objects of a temporary cluster: outcomes are small


@launchers.register("ray")
@dataclass(kw_only=True)
class Ray:
    """Run commands as Ray tasks, each in a separate process.

    workers  maximum number of tasks at a time
    threads  CPUs per task
    gpus     GPUs per task; 0.5 lets two tasks share one
    address  address of the cluster: "auto", "ray://head:10001", "10.0.0.1:6379". None: RAY_ADDRESS, or else a temporary
             cluster on this machine

    The nodes must see the folder and have the same packages installed.
    """

    workers: Annotated[int, Field(ge=1, le=100_000)] = 1
    threads: Annotated[int, Field(ge=1, le=100_000)] = 1
    gpus: Annotated[float, Field(ge=0)] = 0.0
    address: str | None = None

    here = False

    def check(self) -> None:
        _ray()

    def __call__(self, commands: Mapping[str, Command], folder: Path, /) -> Iterator[tuple[str, Outcome]]:
        ray = _ray()
        if not commands:
            return
        with _connected(ray, self.address, self.workers, self.gpus) as temporary:
            # A shared cluster counts CPUs; a temporary one has `workers` places, and a task takes one.
            share = {"num_cpus": 1 if temporary else self.threads, "num_gpus": self.gpus}
            task = ray.remote(max_retries=0, max_calls=1, **share)(_task)
            waiting = deque(commands)
            running: dict[Future[Outcome], tuple[str, Any]] = {}
            try:
                while waiting or running:
                    while waiting and len(running) < self.workers:
                        name = waiting.popleft()
                        with signals_held():
                            reference = task.remote([*commands[name]], str(folder), name, self.threads, bool(self.gpus))
                            running[reference.future()] = (name, reference)
                    # Not Ray's own wait: it holds back the exception of a signal handler until something is done.
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        name, _ = running.pop(future)
                        yield name, _outcome(ray, future)
            finally:
                _end(ray, running)


def _ray() -> Any:
    try:
        return import_module("ray")
    except ImportError:
        cure = "Install it: pip install 'electra-lab[clusters]'."
        raise ConfigError(f"launcher 'ray' needs ray. {cure}") from None


def _task(command: list[str], folder: str, name: str, threads: int, gpus: bool) -> Outcome:
    """Run one command in a worker of Ray, by launcher 'local', which can ask it to stop.

    Ray cancels a task by KeyboardInterrupt, which closes the launcher.
    """
    local: Any = launchers.get("local").component(workers=1, threads=threads, gpus=None if gpus else 0, pin=False)
    with closing(local({name: command}, Path(folder))) as outcomes:
        outcome: Outcome = dict(outcomes)[name]
        return outcome


def _outcome(ray: Any, future: Future[Outcome]) -> Outcome:
    try:
        return future.result()
    except ray.exceptions.RayError as error:
        first = next(iter(str(error).splitlines()), "")
        return Outcome(None, f"Ray lost it ({type(error).__name__}: {first})")


def _end(ray: Any, running: dict[Future[Outcome], tuple[str, Any]]) -> None:
    """Ask the running commands to stop, and wait for them."""
    for _, reference in running.values():
        ray.cancel(reference, force=False)
    for future in wait(running, timeout=SAVING).not_done:
        ray.cancel(running[future][1], force=True)


@contextmanager
def _connected(ray: Any, address: str | None, workers: int, gpus: float) -> Iterator[bool]:
    """Connect to a Ray cluster; yields True if it is a temporary one, which ends with the connection."""
    if ray.is_initialized():  # by the program that called us
        yield False
        return
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address:
        _refuse_silent(address)
    place = {"address": address or "local", "log_to_driver": False, "logging_level": "ERROR"}
    if not address:
        place |= {"num_cpus": workers, "object_store_memory": STORE, "include_dashboard": False}
    handler = signal.getsignal(signal.SIGTERM)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        try:
            ray.init(**place)
        except ConnectionError as error:
            raise _no_cluster(address, error) from None
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray replaced it, but the caller decides when to stop and save
        if not address:
            here = ray.cluster_resources().get("GPU", 0)
            if gpus > here:
                raise ConfigError(f"launcher 'ray': gpus is {gpus:g}, but this machine has {here:g}. Ask for fewer.")
        yield not address
    finally:
        ray.shutdown()


def _refuse_silent(address: str) -> None:
    """Raise ConfigError if nobody listens at the address, where Ray itself tries for ten minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except OSError as error:
            raise _no_cluster(address, error) from None


def _no_cluster(address: str | None, error: Exception) -> ConfigError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return ConfigError(
        f"launcher 'ray' finds no cluster at {address} ({reason}). Start one there with "
        "`ray start --head`, or remove address and RAY_ADDRESS to start one on this machine."
    )
