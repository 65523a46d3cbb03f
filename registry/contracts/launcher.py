"""Launchers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Command = Sequence[str]


@dataclass(frozen=True)
class Outcome:
    """The end of a command.

    code   its exit code; negative: the signal that ended it; None: not known, as its machine was lost
    error  what happened if it is not 0, in one sentence
    """

    code: int | None
    error: str = ""


class Launcher(Protocol):
    """Run independent commands, on this machine or on others that see the folder.

    Registered as a class: __init__(self, /, *, workers, threads, <options>).

    here  the commands run on this machine and its devices
    """

    here: bool

    def check(self) -> None:
        """Raise ConfigError if a requirement of the launcher is missing."""

    def __call__(self, commands: Mapping[str, Command], folder: Path, /) -> Iterator[tuple[str, Outcome]]:
        """Run each command once, in a process of its own, at most `workers` at a time.

        Yields the name and the outcome of each as soon as it ends. What it prints is appended to logs/NAME.txt in the
        folder. A command that fails does not stop the others. Closing the iterator (or Ctrl-C, or SIGTERM) sends those
        that run a SIGTERM, and waits for them.
        """
