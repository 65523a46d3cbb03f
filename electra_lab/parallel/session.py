"""The processes that train one run together: as training sees them, and how torchrun, accelerate or srun start them.

The environment variables are torch's: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store, _abort_process_group
from torch.distributed.rendezvous import rendezvous

from registry import Batch, Losses
from registry.errors import ConfigError, LabError, Reported

Evaluated = tuple[Batch, Losses]  # a batch of an evaluation, and the objective's result
JOIN = timedelta(minutes=10)  # until all processes are there
STEP = timedelta(minutes=30)  # for an exchange within a step
WORK = timedelta(days=14)  # for what rank 0 does alone, such as building a token store
LINGER = 3.0  # seconds for which rank 0, where the others learn who failed, waits for them
LISTEN = 0.25  # seconds between two questions whether another has failed
_LOST = re.compile(r"gloo|NCCL|[Cc]onnection (closed|reset|refused|was)|Broken pipe|[Ss]ocket", re.IGNORECASE)


class World:
    """One process alone, for which nothing needs to be exchanged; electra_lab.parallel.group.Group is for several.

    Every method but `part` is a meeting: all ranks must call the same ones in the same order.
    """

    rank, size = 0, 1

    @property
    def first(self) -> bool:
        """This is rank 0, which writes, prints and does alone what must be done once."""
        return self.rank == 0

    def part(self, rows: int) -> slice:
        """Return this rank's rows of a global batch; `rows` is a multiple of the number of ranks."""
        share = rows // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def sum(self, scalars: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the sums over all ranks, on the device, without waiting for it."""
        return dict(scalars)

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all ranks, in the order of ranks; each gives a tensor of the same shape."""
        return rows

    def synchronize(self, module: nn.Module, enabled: bool) -> None:
        """Set whether the next backward pass through `module` sums the gradients over all ranks."""

    def gathered(self, module: nn.Module) -> AbstractContextManager[None]:
        """Gather all of the module's parameters on every rank inside the block, which then needs no exchange."""
        return nullcontext()

    def in_turn(self, results: Iterator[Evaluated]) -> Iterator[Evaluated]:
        """Yield the items of all ranks in turn, one of each at a time; only rank 0 receives them."""
        return results

    def once(self, work: Callable[[], str]) -> str:
        """Return the result of `work`, which rank 0 does while the others wait, for days if necessary."""
        return work()

    def agreed(self, number: int) -> int:
        """Return the largest number that a rank gave in the previous call, the same on all ranks.

        The previous call, so that the exchange overlaps with the device's work. With one process it is the number
        itself.
        """
        return number

    def wait(self) -> None:
        """Wait until all ranks are here, for days if necessary."""


ALONE = World()


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
