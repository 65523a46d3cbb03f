"""Launchers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True)
class Outcome:
    """The result of a piece of work; `error` is the reason of a failure.

    done       finished, now or before
    failed     another attempt would fail in the same way
    lost       another attempt may succeed: the process died, the disk was full
    preempted  asked to stop, and saved its state
    elsewhere  another process is working on it
    """

    status: Literal["done", "failed", "lost", "preempted", "elsewhere"]
    error: str = ""


Work = Callable[[str, str], Outcome]


class Launcher(Protocol):
    """Run independent pieces of work, given as (folder, id), on this machine or on others that see the folder.

    Registered as a class: __init__(self, /, *, workers, threads, <options>).

    here  the pieces run on this machine and its devices
    """

    here: bool

    def check(self) -> None:
        """Raise ConfigError if a requirement of the launcher is missing."""

    def __call__(self, work: Work, folder: str, ids: Sequence[str], /) -> Iterator[tuple[str, Outcome]]:
        """Call work(folder, id) once for each id, in other processes, at most `workers` at a time.

        Yields each outcome as soon as it is known. `work` is a function of a module or a functools.partial of one. A
        process that dies is a `lost` piece, an exception of `work` a `failed` one; the others continue. Closing the
        iterator (or Ctrl-C, or SIGTERM) asks the running pieces to stop and waits for them.
        """
