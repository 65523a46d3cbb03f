"""Trackers: programs and services that collect the records of runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

Ended = Literal["done", "stopped", "failed"]


@dataclass(frozen=True)
class Tracked:
    """A run, as trackers see it."""

    name: str  # of its experiment and its folder
    group: str  # the name of its experiment, fine-tuning or ablation
    folder: Path  # the run directory
    config: Mapping[str, Any]  # the complete config, as plain values
    step: int  # reached so far: 0 for a new run
    id: str | None  # returned by an earlier `start` of this run


class Tracker(Protocol):
    """Send the records of a run elsewhere. Registered as a class: __init__(self, /, *, <options>).

    It may raise any exception at any time: the run continues without it, and tries it again when it is resumed. It must
    not print, handle signals or end the process, and must not import its libraries before `start`.

    rewinds  a run that was killed goes back to its last checkpoint. True if the tracker then drops its records of later
             steps and receives them again; False if it never receives a record twice
    """

    rewinds: bool

    def check(self) -> None:
        """Raise ConfigError if a library that the tracker needs is missing here."""

    def start(self, run: Tracked, /) -> str:
        """Begin a run, or continue the one with `run.id`. Returns its id."""

    def record(self, step: int, values: Mapping[str, float], /) -> None:
        """Take the record of a step: finite numbers by names such as `train/loss` and `validation/loss`.

        Steps never decrease, except after a rewind.
        """

    def close(self, outcome: Ended, /) -> None:
        """End the run, or this part of it if it was `stopped`. Called once after `start`, unless a call has failed."""
