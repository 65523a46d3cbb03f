"""What a person sees of a job while it runs: the bar, its phase and the time left on the terminal, and its page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
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


PAGE_SHARE = 50  # a page is written again once this multiple of the time that it took has passed: 2% of the time


class Progress:
    """Moves the bar of a training, and names its phases.

    rows  of each split that is evaluated
    """

    def __init__(self, console: Console, settings: Settings, rows: Mapping[str, int]) -> None:
        self._console, self._settings, self._rows = console, settings, rows
        self._waiting: list[Split] = []  # splits to evaluate before the next step
        self._done = 0  # rows of the test

    @contextmanager
    def shown(self, step: int, *, evaluated: bool) -> Iterator[None]:
        """Show the bar."""
        with self._console.progress(step, self._settings.steps):
            if not evaluated:
                self._begin_evaluations(step)
            yield

    def __call__(self, record: Record) -> None:
        """Note a record: the end of a step, a batch of an evaluation, or the end of one."""
        if record.evaluating:
            if self._waiting == ["test"]:
                self._done = min(self._done + self._settings.evaluate_batch_size, self._rows["test"])
                self._console.advance(self._done)
        elif record.evaluation:
            self._waiting = self._waiting[1:]
            if self._waiting or record.step < self._settings.steps:
                self._begin_phase()
        elif not record.values:
            self._console.advance(record.step)
            self._begin_evaluations(record.step)

    def _begin_evaluations(self, step: int) -> None:
        self._waiting = splits_at(step, self._settings, tested="test" in self._rows)
        if self._waiting:
            self._begin_phase()

    @property
    def _phase(self) -> str:
        return "testing" if self._waiting == ["test"] else "evaluating" if self._waiting else "training"

    def _begin_phase(self) -> None:
        self._console.phase(self._phase, self._rows["test"] if self._phase == "testing" else None, "rows")

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Name the phase while a checkpoint is written."""
        self._console.phase("saving")
        try:
            yield
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
