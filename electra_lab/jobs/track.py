"""Pass the records of a run on to its trackers. One that fails never stops the run."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from textwrap import shorten
from typing import Any

from pydantic import BaseModel

from electra_lab.assembly.experiment import make_tracker
from electra_lab.config.finetune import FinetuningConfig
from electra_lab.config.schema import ExperimentConfig
from electra_lab.storage.files import read_as
from electra_lab.storage.run_directory import RunDirectory
from registry import Ended, Tracked, Tracker
from registry.component import Component
from registry.errors import CheckpointError, LabError, Stopped

FILE = "trackers.json"  # in the run directory
Line = Mapping[str, Any]  # of metrics.jsonl


class State(BaseModel):
    """The state of a tracker, stored until the run is resumed."""

    type: str
    id: str | None = None  # of the tracker's own run
    sent: int = 0  # lines of metrics.jsonl; a resumed run writes those after its checkpoint again, with equal values


class Trackers:
    """The trackers of a run, each until it fails."""

    def __init__(self, chosen: Sequence[Component], directory: RunDirectory, say: Callable[[str], None]) -> None:
        self._chosen, self._directory, self._say = chosen, directory, say
        self._states = [State(type=component.type) for component in chosen]
        self._live: dict[int, Tracker] = {}  # by their place in the config
        self._lines = 0  # of metrics.jsonl

    def start(self, run: Tracked) -> None:
        if not self._chosen:
            return
        with suppress(CheckpointError):  # none yet, or damaged
            saved = read_as(list[State], self._directory.path / FILE)
            if [state.type for state in saved] == [state.type for state in self._states]:
                self._states = saved
        lines = self._directory.records()
        self._lines = len(lines)
        for place, state in enumerate(self._states):
            self._attempt(place, "at the start", partial(self._begin, place, state, run))
        self._send(lines)

    def _begin(self, place: int, state: State, run: Tracked) -> None:
        tracker = make_tracker(self._chosen[place])
        tracker.check()
        state.id = tracker.start(replace(run, id=state.id))
        if tracker.rewinds:
            state.sent = min(state.sent, self._lines)
        self._live[place] = tracker

    def __call__(self, line: Line) -> None:
        if self._live:
            self._lines += 1
            self._send([line])

    def _send(self, lines: Sequence[Line]) -> None:
        """Send the last lines to each tracker that has not received them."""
        before = [state.sent for state in self._states]
        for place in self._live:
            self._states[place].sent = max(before[place], self._lines)
        self._keep()  # first: if the process is killed here, a line is lost rather than sent twice
        for place in list(self._live):
            for number, line in enumerate(lines, start=self._lines - len(lines)):
                if place in self._live and number >= before[place]:
                    act = partial(self._live[place].record, line["step"], _numbers(line))
                    if not self._attempt(place, f"at step {line['step']}", act):
                        self._states[place].sent = number
                        self._keep()

    def _keep(self) -> None:
        with suppress(CheckpointError):  # a full disk is reported by metrics.jsonl and the checkpoints
            self._directory.write_json(FILE, [state.model_dump() for state in self._states])

    def close(self, outcome: Ended) -> None:
        for place in list(self._live):
            self._attempt(place, "at the end", partial(self._live[place].close, outcome))

    def _attempt(self, place: int, when: str, act: Callable[[], object]) -> bool:
        """Return True on success; otherwise report the reason and continue without the tracker."""
        try:
            act()
        except (Exception, SystemExit) as error:
            self._live.pop(place, None)
            said = shorten(str(error), 300, placeholder=" ...")
            reason = said if isinstance(error, LabError) else f"failed {when} ({type(error).__name__}: {said})."
            name = self._chosen[place].type
            self._say(
                f"note: the tracker {name} {reason} The run continues without it; metrics.jsonl has every record."
            )
            return False
        return True


@contextmanager
def tracking(
    config: ExperimentConfig | FinetuningConfig,
    directory: RunDirectory,
    say: Callable[[str], None],
    *,
    name: str,
    step: int,
) -> Iterator[Trackers]:
    """Yield the trackers, which are given each record once it is in metrics.jsonl.

    name  name of the run; its group has the config's name
    step  current step of the run
    """
    trackers = Trackers(config.trackers, directory, say)
    complete = config.model_dump(mode="json", exclude_none=True)
    trackers.start(Tracked(name, config.name, directory.path, complete, step, None))
    outcome: Ended = "failed"
    try:
        yield trackers
        outcome = "done"
    except (Stopped, KeyboardInterrupt):
        outcome = "stopped"
        raise
    finally:
        trackers.close(outcome)


def _numbers(line: Line) -> dict[str, float]:
    """Return the finite numbers of a line, by names such as `train/loss`."""
    numbers = {name: value for name, value in line.items() if name not in ("step", "split") and value is not None}
    return {f"{line['split']}/{name}": value for name, value in numbers.items() if math.isfinite(value)}
