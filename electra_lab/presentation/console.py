"""The terminal during a run: a progress bar on a terminal, plain lines anywhere else."""

import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from registry import Metric
from registry.errors import shown


class _Rich(RichConsole):
    def on_broken_pipe(self) -> None:
        """Go silent, where the library would end the process. Commands have messages that never break: cli/_streams."""
        self.quiet = True


class Console:
    """Writes to standard error; standard output is for the answer of a command.

    quiet  write nothing, as another process does
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._rich = _Rich(stderr=True, highlight=False, soft_wrap=True, emoji=False, quiet=quiet)
        self._progress: Progress | None = None

    def say(self, text: str) -> None:
        try:
            self._rich.print(folded(shown(text), sys.stderr), markup=False)
        except OSError:  # a full disk
            self._rich.quiet = True

    @contextmanager
    def progress(self, done: int, total: int | None, title: str = "training", unit: str = "steps") -> Iterator[None]:
        if self._rich.quiet or not sys.stderr.isatty():
            yield
            return
        columns = (
            TextColumn(title), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn(),
            TextColumn("left"), TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=self._rich, transient=True) as self._progress:
            self._progress.add_task("", completed=done, total=total)
            yield
        self._progress = None

    def advance(self, done: int) -> None:
        if self._progress:
            self._progress.update(self._progress.task_ids[0], completed=done)

    def record(self, values: Mapping[str, Any], metrics: Mapping[str, Metric]) -> None:
        """Print the metrics of a record that have a brief name on one line, the same on a terminal and in a log."""
        brief = [(name, metric) for name, metric in metrics.items() if metric.brief and values.get(name) is not None]
        brief.sort(key=lambda pair: pair[1].higher_is_better)  # losses first
        words = [f"{metric.brief} {values[name]:.3f}" for name, metric in brief] or [f"loss {values['loss']:.3f}"]
        if values["split"] == "train":
            words.append(f"{values['tokens_per_second']:,.0f} tokens/s")
        self.say("  ".join([f"step {values['step']:>6}", f"{values['split']:<10}", *words]))


def folded(text: str, stream: TextIO) -> str:
    """Fold long lines at spaces, for a terminal; continuations are indented to the last column of the line.

    A line with a command stays whole, to be copied.
    """
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(_folded(line, width) for line in text.split("\n"))


def _folded(line: str, width: int) -> str:
    if len(line) <= width or "electra-lab " in line:
        return line
    columns = [match.end() for match in re.finditer(r"(?<=\S)\s{2,}", line[: width // 2 + 10])]
    begin = columns[-1] if columns else len(line) - len(line.lstrip())  # what is before keeps its spaces
    below = " " * (begin if columns else begin + 4)
    wrapper = textwrap.TextWrapper(width, line[:begin], below, break_long_words=False, break_on_hyphens=False)
    return wrapper.fill(line[begin:])
