"""What a person sees of a job while it runs: the bar, its phase and the time left on the terminal, and its page."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from electra_lab.presentation.console import Console
from electra_lab.presentation.pages import Unfinished
from electra_lab.storage.files import reason
from electra_lab.training.loop import Record, Settings, splits_at
from registry.errors import LabError, Stopped

if TYPE_CHECKING:
    from registry import Split


MEMORY = 60.0  # seconds of steps that the speed is a mean of; earlier ones fade out
FORWARD = 1 / 3  # of the time of a training step that a row takes to be evaluated, until it is measured
PAGE_SHARE = 50  # a page is written again once this multiple of the time that it took has passed: 2% of the time


class Pace:
    """Estimates the time left: of the steps by recent ones, of evaluations and saves by those that were measured.

    rows        of each split that is evaluated
    save_every  steps between checkpoints
    milestones  further steps that are saved
    """

    def __init__(
        self,
        settings: Settings,
        step: int,
        rows: Mapping[str, int],
        save_every: int,
        milestones: Collection[int] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.rows, self._every, self._milestones = settings, rows, save_every, milestones
        self._clock, self._since = clock, clock()
        self._step, self._done = step, 0  # and the rows that were read of the evaluations after it
        self._taken, self._number, self._seconds = 0, 0.0, 0.0  # steps here; faded number of steps and their seconds
        self._read, self._reading = 0, 0.0  # rows evaluated here, and the seconds that it took
        self._saves, self._saving, self._unsaved = 0, 0.0, False

    def stepped(self, step: int) -> None:
        """Note the end of a step."""
        seconds = self._lap()
        fading = math.exp(-seconds / MEMORY) if self._taken != 1 else 0.0  # the first one was slow, as all first are
        self._number, self._seconds = self._number * fading + 1, self._seconds * fading + seconds
        self._taken, self._step, self._done, self._unsaved = self._taken + 1, step, 0, True

    def evaluated(self, rows: int) -> None:
        """Note that rows were evaluated."""
        self._reading += self._lap()
        self._read, self._done = self._read + rows, self._done + rows

    def paused(self) -> None:
        """Leave out the time since the last of these: it is no part of a step."""
        self._lap()

    def saved(self) -> None:
        self._saving += self._lap()
        self._saves, self._unsaved = self._saves + 1, False

    def _lap(self) -> float:
        since, self._since = self._since, self._clock()
        return self._since - since

    def left(self) -> float | None:
        """Return the seconds left, None before the first step."""
        if not self._taken:
            return None
        settings, step, steps = self.settings, self._step, self.settings.steps
        per_step = self._seconds / self._number
        # Evaluations: those after later steps, and the rest of those after this one.
        every = settings.evaluate_every
        later = _multiples(every, step, steps) if every else int(step < steps)
        rows = later * self.rows["validation"] + (step < steps) * self.rows.get("test", 0)
        now = splits_at(step, settings, tested="test" in self.rows)
        rows += max(0, sum(self.rows[split] for split in now) - self._done)
        per_row = self._reading / self._read if self._read else FORWARD * per_step / settings.batch_size
        # Saves.
        since = step - self._unsaved
        saves = _multiples(self._every, since, steps)
        saves += sum(since < milestone < steps and milestone % self._every != 0 for milestone in self._milestones)
        per_save = self._saving / self._saves if self._saves else 0.0
        batches = settings.batches  # steps take time in proportion to their rows
        later_steps = (batches.before(steps) - batches.before(step)) / batches.at(step - 1)
        left = later_steps * per_step + rows * per_row + saves * per_save
        return max(0.0, left - (self._clock() - self._since))


def _multiples(every: int, step: int, steps: int) -> int:
    """Return the number of multiples of `every` after `step`, the last step included, whatever it is."""
    return steps // every - step // every + (step < steps and steps % every != 0)


class Progress:
    """Moves the bar of a training, and names its phases."""

    def __init__(self, console: Console, pace: Pace) -> None:
        self._console, self.pace = console, pace
        self._waiting: list[Split] = []  # splits to evaluate before the next step
        self._done = 0  # rows of the first of them

    @contextmanager
    def shown(self, step: int, *, evaluated: bool) -> Iterator[None]:
        """Show the bar."""
        with self._console.progress(step, self.pace.settings.steps, left=self.pace.left):
            if not evaluated:
                self._begin_evaluations(step)
            yield

    def __call__(self, record: Record) -> None:
        """Note a record: the end of a step, a batch of an evaluation, or the end of one."""
        if record.evaluating:
            rows = self.pace.rows[self._waiting[0]] if self._waiting else 0
            batch = min(self.pace.settings.evaluate_batch_size, rows - self._done)
            self.pace.evaluated(batch)
            self._done += batch
            if self._waiting == ["test"]:
                self._console.advance(self._done)
        elif record.evaluation:
            if self._waiting:  # all of it if there were no pauses, as with several processes
                self.pace.evaluated(self.pace.rows[self._waiting[0]] - self._done)
            self._waiting, self._done = self._waiting[1:], 0
            if self._waiting or record.step < self.pace.settings.steps:
                self._begin_phase()
        elif not record.values:
            self.pace.stepped(record.step)
            self._console.advance(record.step)
            self._begin_evaluations(record.step)

    def _begin_evaluations(self, step: int) -> None:
        self._waiting, self._done = splits_at(step, self.pace.settings, tested="test" in self.pace.rows), 0
        if self._waiting:
            self._begin_phase()

    @property
    def _phase(self) -> str:
        return "testing" if self._waiting == ["test"] else "evaluating" if self._waiting else "training"

    def _begin_phase(self) -> None:
        self._console.phase(self._phase, self.pace.rows["test"] if self._phase == "testing" else None, "rows")

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Name the phase while a checkpoint is written."""
        self._console.phase("saving")
        try:
            yield
            self.pace.saved()
        finally:
            self._console.phase(self._phase)


class LivePage:
    """Writes the page of a job again and again, in at most 2% of the time; the last one says which error ended the job.

    write  writes it, for an unfinished job; None for a process that writes no pages
    say    is told once if that fails

    A process that is ended at once, as by a second Ctrl-C, writes no page any more.
    """

    def __init__(self, write: Callable[[Unfinished], object] | None, say: Callable[[str], None]) -> None:
        self._write, self._say = write, say
        self._due, self._last = 0.0, time.monotonic()
        self._failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Stopped):
            self._attempt(Unfinished("interrupted: it can be resumed"))
        elif isinstance(error, Exception):
            said = str(error) if isinstance(error, LabError) else "an internal error"
            self._attempt(Unfinished(f"ended by an error: {said}"))

    def __call__(self, *, now: bool = False) -> None:
        """Write it if it is due, or in any case, after something new was recorded."""
        began = time.monotonic()
        if now or began >= self._due:
            pause, self._last = began - self._last, began
            self._attempt(Unfinished("running", pause))

    def _attempt(self, how: Unfinished) -> None:
        began = time.monotonic()
        try:
            if self._write:
                self._write(how)
        except Exception as error:  # a full disk, damaged records: the job goes on without a page
            if not self._failed:
                self._say(f"note: report.html could not be written while the job runs ({reason(error)})")
            self._failed = True
        self._due = time.monotonic() + PAGE_SHARE * (time.monotonic() - began)
