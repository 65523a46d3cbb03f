"""Trackers as a config names them."""

from typing import Any

from electra_lab.config.component import Component
from electra_lab.config.load import Loaded
from registry import Tracker, trackers, using
from registry.errors import ConfigError, LabError


def make_tracker(chosen: Component) -> Tracker:
    """Raises ValueError if the component refuses its options."""
    return trackers.get(chosen.type).component(**chosen.keywords())


def absent_tracker(loaded: Loaded[Any]) -> LabError | None:
    """Return the error that a run would raise for a library that is not installed, None if there is none.

    Raises ConfigError if a tracker refuses its options.
    """
    for number, chosen in enumerate(loaded.config.trackers):
        try:
            with using(trackers.get(chosen.type)):
                make_tracker(chosen).check()
        except ConfigError as error:
            return loaded.problem(("trackers", number), f"{chosen.type} {error}")
        except ValueError as error:
            raise loaded.problem(("trackers", number), f"{chosen.type} refuses this: {error}") from error
    return None
