"""The terminal during a command: a progress bar on a terminal, plain lines anywhere else."""

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from registry import Metric
from registry.errors import shown

EVERY = 30.0  # seconds between two lines about the data that are prepared


class _Rich(RichConsole):
    def on_broken_pipe(self) -> None:
        """Go silent instead of ending the process, as the library would. cli/_streams reports broken streams."""
        self.quiet = True


class Console:
    """Writes to standard error; standard output is for the results of a command.

    quiet  silence, as another process writes
    title  prefix of the phases of a bar, such as the seed
    """

    def __init__(self, *, quiet: bool = False) -> None:
        system: Any = None if os.environ.get("NO_COLOR") else "auto"  # without it, nothing is dimmed either
        self._rich = _Rich(stderr=True, highlight=False, soft_wrap=True, emoji=False, quiet=quiet, color_system=system)
        self._progress: Progress | None = None
        self.title, self._unit = "", ""

    def say(self, text: str) -> None:
        try:
            self._rich.print(shown(text), markup=False)
        except OSError:  # a full disk
            self._rich.quiet = True

    @contextmanager
    def progress(self, done: int, total: int | None, title: str = "training", unit: str = "steps") -> Iterator[None]:
        """Show a bar, on a terminal; `advance` moves it."""
        if self._rich.quiet or not sys.stderr.isatty():
            yield
            return
        columns = [
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(20),
            TextColumn("{task.fields[amount]}", table_column=Column(no_wrap=True)),
            TimeElapsedColumn(),
            TextColumn("left", table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
        ]
        self._unit = unit
        with Progress(*columns, console=self._rich, transient=True) as self._progress:
            self._progress.add_task(
                f"{self.title} {title}".strip(), completed=done, total=total, amount=self._amount(done, total)
            )
            try:
                yield
            finally:
                self._progress = None

    def advance(self, done: int) -> None:
        if self._progress:
            [task] = self._progress.tasks
            self._progress.update(task.id, completed=done, amount=self._amount(done, task.total))

    def phase(self, title: str, total: int | None = None, unit: str = "") -> None:
        """Name the current phase; one with a `total` is long, and has a bar, or a line where there are no bars."""
        if self._progress:
            [task] = self._progress.tasks
            self._progress.update(task.id, description=f"{self.title} {title}".strip())
            if total:
                self._unit = unit
                self._progress.reset(task.id, total=total)  # and its clock
                self._progress.update(task.id, amount=self._amount(0, total))
        elif total:
            self.say(f"{title}: {total:,} {unit}")

    def show(self, phase: str, done: int, total: int | None, amount: str) -> None:
        """Let the bar show a phase; a new one starts its clock."""
        if self._progress:
            [task] = self._progress.tasks
            if phase != task.description:
                self._progress.reset(task.id, description=phase)
            self._progress.update(task.id, completed=done, total=total, amount=amount)

    def _amount(self, done: int, total: float | None) -> str:
        if total is None and not done:
            return ""
        return f"{done:,}/{'?' if total is None else f'{total:,.0f}'} {self._unit}".rstrip()

    def record(self, values: Mapping[str, Any], metrics: Mapping[str, Metric]) -> None:
        """Print the metrics of a record that have a brief name on one line, the same on a terminal and in a log."""
        brief = [(name, metric) for name, metric in metrics.items() if metric.brief and values.get(name) is not None]
        brief.sort(key=lambda pair: pair[1].higher_is_better)  # losses first
        words = [f"{metric.brief} {values[name]:.3f}" for name, metric in brief] or [f"loss {values['loss']:.3f}"]
        if values["split"] == "train":
            words.append(f"{values['tokens_per_second']:,.0f} tokens/s")
        self.say("  ".join([f"step {values['step']:>6}", f"{values['split']:<10}", *words]))


class Phases:
    """Shows the phases of preparing data: progress(phase, characters done, total if known)."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._phase, self._began, self._shown = "", 0.0, 0.0
        self._open = console.progress(0, None, "", "")

    def __enter__(self) -> Self:
        self._open.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if phase != self._phase:
            self._phase, self._began, self._shown = phase, now, now
        seconds = max(now - self._began, 1e-9)
        rate = f"{done / 1e6:,.0f} million characters, {done / seconds / 1e6:,.1f} million/s"
        self.console.show(phase, done, total, rate)
        if not sys.stderr.isatty() and now - self._shown >= EVERY:
            self._shown = now
            share = f"{done / total:.0%}, " if total else ""
            left = f", {seconds * (total - done) / max(done, 1):,.0f} s left" if total else ""
            self.console.say(f"{phase}: {share}{rate}{left}")
