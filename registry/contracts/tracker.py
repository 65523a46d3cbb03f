"""Trackers: programs and services beside the lab that collect runs and show them."""

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
    config: Mapping[str, Any]  # complete, of plain values
    step: int  # that it has reached: 0 for a new run
    id: str | None  # what `start` returned when the run was here before


class Tracker(Protocol):
    """Show the records of a run elsewhere. Registered as a class: __init__(self, /, *, <options>).

    It may fail at any time, by any exception: the run continues without it, and it is tried again when the run is
    resumed. Nothing of it may print, handle signals, or end the process. Of the libraries that it needs, nothing is
    imported before `start`.

    rewinds  a run that was killed goes back to its last checkpoint. True if the tracker then forgets all that it has
             of later steps and receives it again; False if it never receives a record twice
    """

    rewinds: bool

    def check(self) -> None:
        """Raise ConfigError if a library that the tracker needs is missing here."""

    def start(self, run: Tracked, /) -> str:
        """Begin, or continue the run that has `run.id`; returns its id."""

    def record(self, step: int, values: Mapping[str, float], /) -> None:
        """Take a record of the step: finite numbers, by names such as `train/loss` and `validation/loss`.

        The steps never decrease, but for a tracker that rewinds.
        """

    def close(self, outcome: Ended, /) -> None:
        """End the run, or this part of it if it was `stopped`. Called once after `start`, unless a call has failed."""
