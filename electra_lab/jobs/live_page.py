"""The page of a job while it lives: written when there is something new, and never the end of the job."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from electra_lab.presentation.pages import Unfinished
from electra_lab.storage.files import reason
from registry.errors import LabError, Stopped

SHARE = 50  # a page is written again once this multiple of the time that it took has passed: 2% of the time


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
        self._due = time.monotonic() + SHARE * (time.monotonic() - began)
