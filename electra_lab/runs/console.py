"""What a person sees while a run goes on: a progress bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Console:
    """Writes to standard error; standard output is left to what a command answers."""

    def __init__(self) -> None:
        self._rich = RichConsole(stderr=True, highlight=False, soft_wrap=True)
        self._progress: Progress | None = None

    def say(self, text: str) -> None:
        self._rich.print(text, markup=False)

    @contextmanager
    def progress(self, done: int, total: int, what: str = "training", unit: str = "steps") -> Iterator[None]:
        if not sys.stderr.isatty():
            yield
            return
        columns = (
            TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn(),
            TextColumn("left"), TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=self._rich, transient=True) as self._progress:
            self._progress.add_task("", completed=done, total=total)
            yield
        self._progress = None

    def advance(self, done: int) -> None:
        if self._progress:
            self._progress.update(self._progress.task_ids[0], completed=done)

    def record(self, values: dict[str, Any]) -> None:
        """One line a record: short enough to read, the same on a terminal and in a log."""
        losses = "  ".join(
            f"{name.removesuffix('_loss')} {values[name]:.3f}"
            for name in ("generator_loss", "discriminator_loss")
            if name in values
        )
        if values["split"] == "train":
            tail = f"{values['tokens_per_second']:,.0f} tokens/s"
        elif "discriminator_auc" in values:
            tail = f"AUC {values['discriminator_auc']:.3f}"
        else:
            tail = f"token accuracy {values.get('discriminator_token_accuracy', float('nan')):.3f}"
        self.say(f"step {values['step']:>6}  {values['split']:<8}  {losses}  {tail}")
