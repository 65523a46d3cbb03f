"""How a command ends before it is done: by a signal, or by an error as the user sees it."""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from registry import blame
from registry.errors import (
    ConfigError,
    DataError,
    Interrupted,
    LabError,
    OutOfMemoryError,
    Preempted,
    Signalled,
    Stopped,
    is_shortage,
    said,
)

# Signals that schedulers send before they kill; Windows knows only the first two.
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
STOPPING = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
KILLING = [number for number in STOPPING if number != signal.SIGINT]  # which Python does not handle by itself
ECHO = 0.5  # seconds in which a second Ctrl-C counts as the first: the process and its group may each receive it
# Errors of the system that concern a path or a disk, wherever it is used.
PATHS = {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EROFS}
DISKS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EBADF, errno.ENXIO}  # closed; a socket


@dataclass
class Arrived:
    """The signal that has arrived, 0 if none has."""

    number: int = 0
    pressed: float = 0.0  # time of the first Ctrl-C


def stopped(number: int, reason: str) -> Stopped:
    """Return the error with which a run ends after a signal."""
    return (Interrupted if number == signal.SIGINT else Preempted)(reason)


def name_of(number: int) -> str:
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


@contextmanager
def ending(cure: Callable[[], str]) -> Iterator[None]:
    """End the block at once when a signal arrives. Raises Interrupted or Preempted with `cure` in the message."""
    try:
        with handled(raise_signal):
            yield
    except Signalled as arrived:
        raise stopped(arrived.number, f"stopped by {name_of(arrived.number)}. {cure()}") from None


@contextmanager
def noted(say: Callable[[str], None], *, alone: bool, arrived: Arrived | None = None) -> Iterator[Arrived]:
    """Record the first signal in the block, which checks for it when it can stop. Only a second Ctrl-C acts at once.

    alone  False for one of several processes, where a second Ctrl-C is ignored: launchers forward signals that the
           processes have already received
    """
    arrived = arrived or Arrived()

    def note(number: int) -> None:
        now = time.monotonic()
        if alone and number == signal.SIGINT:
            if arrived.pressed and now - arrived.pressed > ECHO:
                raise KeyboardInterrupt
            arrived.pressed = arrived.pressed or now
        if arrived.number:
            return
        arrived.number = number
        with suppress(RuntimeError, OSError):  # the signal may have interrupted a write to the same stream
            second = "; a second Ctrl-C stops without saving" if alone and number == signal.SIGINT else ""
            say(f"{name_of(number)}: saving after this step{second}")

    with handled(note):
        yield arrived


def raise_signal(number: int) -> None:
    """Raise Signalled, once."""
    for other in STOPPING:  # until the block is left, so that nothing interrupts its clean-up
        signal.signal(other, signal.SIG_IGN)
    raise Signalled(number)


@contextmanager
def handled(act: Callable[[int], None], numbers: Sequence[int] = STOPPING) -> Iterator[None]:
    """Call `act` at a signal, except for those that are ignored, as under nohup; then restore the earlier handlers."""
    can = threading.current_thread() is threading.main_thread()  # signals are handled only there
    handlers = {number: signal.getsignal(number) for number in numbers if can}
    before = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, lambda number, _: act(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def as_lab_error(error: BaseException) -> LabError | None:
    """Return the error as one of the lab's, None if it is internal: the one place that decides it for all commands."""
    if isinstance(error, LabError):
        return error
    if is_shortage(error):
        brief = (said(error).splitlines() or [type(error).__name__])[0]
        return OutOfMemoryError(f"there is not enough memory ({brief}). Use a smaller corpus, batch or network.")
    if plugin := blame(error):
        return plugin
    return _of_the_system(error) if isinstance(error, OSError) else None


def _of_the_system(error: OSError) -> LabError | None:
    if error.errno in PATHS and error.filename:
        return ConfigError(f"{error.filename}: cannot be read or written ({error.strerror}).")
    if error.errno in DISKS:
        return DataError(f"{error.filename or 'a file or standard output'}: cannot be written ({error.strerror}).")
    if "usable temporary directory" in str(error):  # of tempfile
        return ConfigError(f"{error.strerror}. Set TMPDIR to a folder that can be written to.")
    if isinstance(error, FileNotFoundError) and not _is_somewhere():
        return ConfigError("the working directory has been deleted. Change to another one.")
    return None


def _is_somewhere() -> bool:
    """Return True if the working directory exists."""
    try:
        return bool(os.getcwd())
    except FileNotFoundError:
        return False


def exit_code(error: BaseException) -> int:
    """Return the exit code of an error, 1 if it is internal."""
    problem = as_lab_error(error)
    return problem.exit_code if problem else 1
