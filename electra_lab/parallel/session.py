"""The processes that train one run together, as torchrun, accelerate or srun start them.

The environment variables are torch's: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _abort_process_group
from torch.distributed.rendezvous import rendezvous

from registry.contracts.objective import ALONE, World
from registry.errors import ConfigError, LabError, Reported

JOIN = timedelta(minutes=10)  # until all processes are there
STEP = timedelta(minutes=30)  # for an exchange within a step
WORK = timedelta(days=14)  # for what rank 0 does alone, such as building a token store
LINGER = 3.0  # seconds for which rank 0, where the others learn who failed, waits for them
LISTEN = 0.25  # seconds between two questions whether another has failed
_LOST = re.compile(r"gloo|NCCL|[Cc]onnection (closed|reset|refused|was)|Broken pipe|[Ss]ocket", re.IGNORECASE)


def processes() -> int:
    """Return the number of processes that were started together. Raises ConfigError."""
    return _number("WORLD_SIZE", 1, lowest=1)


def neighbours() -> int:
    """Return the number of them on this machine, by default all. Raises ConfigError."""
    return _number("LOCAL_WORLD_SIZE", processes(), lowest=1)


def is_first() -> bool:
    """Return whether this is rank 0, which alone prints answers. Raises ConfigError."""
    return processes() == 1 or _number("RANK", 0) == 0


@contextmanager
def session(device: str, exit_code: Callable[[BaseException], int]) -> Iterator[World]:
    """Train with the other processes that were started with this one, or alone. Raises ConfigError.

    If the block fails on a rank, the exchanges of the others break off, and all exit with the code of the first that
    failed, which they read from the store. Only that rank raises its own error; the others raise Reported.

    device     `cpu`, `cuda` or `auto`: CUDA if available, and each process takes the GPU of its LOCAL_RANK
    exit_code  function from an error to the exit code of the command
    """
    if processes() == 1:
        yield ALONE
        return
    store, world = _join(device)
    # The listener needs another client: a client that waits for a process blocks all threads.
    failed, listener = False, _Listener(store.clone())  # type: ignore[attr-defined]
    listener.start()
    try:
        yield world
        world.wait()
    except (Exception, SystemExit) as error:  # a plug-in may exit
        failed = True
        # Launchers signal the others when one process has ended, which must not change exit codes.
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(ValueError):  # not in the main thread
                signal.signal(number, signal.SIG_IGN)
        reason = _reason(error, store, world, listener, exit_code)
        if reason is error:
            raise
        raise reason from error
    finally:
        _leave(store, world, listener, failed=failed)


class _Listener(threading.Thread):
    """Learns from the store of rank 0 that a process has failed, while this one waits in an exchange.

    An exchange breaks only when the failed process exits, and with rank 0 the store would be gone by then. So rank 0
    waits until all have heard.

    heard  the exit code of the first process that failed, None if none has
    """

    def __init__(self, store: Store) -> None:
        super().__init__(name="listener", daemon=True)
        self._store, self._over = store, threading.Event()
        self.heard: int | None = None

    def run(self) -> None:
        with suppress(RuntimeError):  # the store is gone, as rank 0 was killed
            while not self._over.wait(LISTEN):
                if self._store.check(["exit_code"]):
                    self.heard = int(self._store.get("exit_code"))
                    self._store.add("need_nothing", 1)
                    return

    def stop(self) -> None:
        """Stop listening, and tell rank 0 not to wait for this process."""
        self._over.set()
        self.join(LINGER)
        if not self.is_alive() and self.heard is None:
            self._store.add("need_nothing", 1)


def _join(device: str) -> tuple[Store, World]:
    from electra_lab.parallel.group import Group  # with DDP and FSDP2, which one process alone does without

    rank, size = _number("RANK"), processes()
    if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise ConfigError(f"WORLD_SIZE is {size}, but {missing[0]} is not set. Start the processes by torchrun.")
    backend, chosen = "gloo", torch.device("cpu")
    if device != "cpu" and torch.cuda.is_available():
        local, here = _number("LOCAL_RANK"), torch.cuda.device_count()
        if local >= here:
            raise ConfigError(
                f"LOCAL_RANK is {local}, but this machine has {here} CUDA devices: start one process for each device "
                "(torchrun --nproc-per-node), or use --device cpu."
            )
        torch.cuda.set_device(local)
        backend, chosen = "nccl", torch.device("cuda", local)
    try:
        store, *_ = next(rendezvous("env://", timeout=JOIN))
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=STEP,
            device_id=chosen if backend == "nccl" else None,
        )  # fmt: skip
        host = dist.new_group(backend="gloo", timeout=WORK)
        world = Group(chosen, host)
        world.wait()
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise LabError(
            f"process {rank} of {size} cannot join the others at {where} ({_brief(error)}). All must start within "
            f"{JOIN.seconds // 60} minutes, with the same MASTER_ADDR and MASTER_PORT."
        ) from error
    return PrefixStore("electra_lab", store), world


def _reason(
    error: BaseException, store: Store, world: World, listener: _Listener, exit_code: Callable[[BaseException], int]
) -> BaseException:
    """Return the error to raise on this rank: its own if it is the first to fail."""
    if listener.heard is not None:
        return Reported(listener.heard)
    final = error
    if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and _LOST.search(str(error))):
        final = LabError(
            f"another of the {world.size} processes died without a message (killed, or its machine failed), so all "
            f"stop ({_brief(error)}). Continue from the last checkpoint: electra-lab resume RUN_DIR"
        )
    with suppress(RuntimeError):  # the store is gone, with rank 0
        if store.add("failures", 1) > 1:
            return Reported(int(store.get("exit_code")))
        store.set("exit_code", str(exit_code(final)))
    return final


def _leave(store: Store, world: World, listener: _Listener, *, failed: bool) -> None:
    with suppress(Exception):  # this process exits, whatever is broken
        if failed and dist.get_backend() == "nccl":
            _abort_process_group()  # destroying the group would wait for its exchanges
        else:
            dist.destroy_process_group()
    with suppress(Exception):
        listener.stop()
        until = time.monotonic() + LINGER
        while world.first and store.add("need_nothing", 0) < world.size and time.monotonic() < until:
            time.sleep(0.02)


def _number(name: str, default: int | None = None, lowest: int = 0) -> int:
    text = os.environ.get(name, "" if default is None else str(default))
    if not text.isdecimal() or int(text) < lowest:
        raise ConfigError(f"{name} is {text!r}, must be a number from {lowest}. Start the processes by torchrun.")
    return int(text)


def _brief(error: Exception) -> str:
    """Return the reason in the long messages of gloo and NCCL."""
    text = str(error)
    match = re.search(r"[Cc]onnection (closed|reset|refused)( by peer)?|[Tt]imed? ?out[^.,\n]*|Broken pipe", text)
    return match[0] if match else (text.splitlines() or [type(error).__name__])[0][:200]
