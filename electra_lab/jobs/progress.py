"""The progress of preparing data: a bar with rate and time left on a terminal, a line now and then anywhere else."""

import sys
import time
from typing import Self

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from electra_lab.presentation.console import Console

EVERY = 30.0  # seconds between two lines


class Phases:
    """Shows what it is called with: progress(what is done, how many characters, of how many if that is known)."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._phase, self._began, self._shown = "", 0.0, 0.0
        self._bars: Progress | None = None
        self._bar = TaskID(0)

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            columns = (
                TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn(),
                TextColumn("left"), TimeRemainingColumn(),
            )  # fmt: skip
            self._bars = Progress(*columns, console=RichConsole(stderr=True), transient=True)
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars:
            self._bars.stop()

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if phase != self._phase:
            self._phase, self._began, self._shown = phase, now, now
            if self._bars:
                for task in self._bars.task_ids:
                    self._bars.remove_task(task)
                self._bar = self._bars.add_task(phase, total=total, rate="")
        seconds = max(now - self._began, 1e-9)
        rate = f"{done / 1e6:,.0f} million characters, {done / seconds / 1e6:,.1f} million/s"
        if self._bars:
            self._bars.update(self._bar, completed=done, total=total, rate=rate)
        elif now - self._shown >= EVERY:
            self._shown = now
            share = f"{done / total:.0%}, " if total else ""
            left = f", {seconds * (total - done) / max(done, 1):,.0f} s left" if total else ""
            self.console.say(f"{phase}: {share}{rate}{left}")
