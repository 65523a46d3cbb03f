"""The outputs of a task's rows, collected batch by batch, and its results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, Self

from registry import Batch, Example, Losses, Metric, Results, Row, Task


class Collected:
    """An accumulator of a task on one split.

    examples   of the split
    rows       of each example
    of_tokens  names of the outputs that rows have per token
    """

    def __init__(
        self, task: Task, examples: Sequence[Any], rows: Sequence[Sequence[Row]], of_tokens: Collection[str]
    ) -> None:
        self._task, self._examples, self._rows, self._of_tokens = task, examples, rows, of_tokens
        self._sizes = [len(row.tokens) for row in chain.from_iterable(rows)]
        self._outputs: dict[int, dict[str, Any]] = {}  # by the number of the row

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return self._task.metrics

    def update(self, batch: Batch, losses: Losses) -> None:
        rows = batch.example_ids.tolist()
        for row in rows:
            self._outputs[row] = {}
        for name, outputs in losses.outputs.items():
            values = outputs.cpu().numpy()
            for place, row in enumerate(rows):
                of_row = values[place]
                self._outputs[row][name] = of_row[: self._sizes[row]] if name in self._of_tokens else of_row

    def merge(self, other: Self) -> None:
        self._outputs |= other._outputs

    def values(self) -> dict[str, float]:
        return dict(self.results.metrics)

    def examples(self) -> list[Example]:
        return []

    @cached_property
    def results(self) -> Results:
        """The results over all rows; call it when they have all been seen."""
        outputs, first = list[list[Mapping[str, Any]]](), 0
        for rows in self._rows:
            outputs.append([self._outputs[number] for number in range(first, first + len(rows))])
            first += len(rows)
        return checked(self._task.results(self._examples, self._rows, outputs), self._examples)


def checked(found: object, examples: Sequence[Any]) -> Results:
    """Return the results of a task. Raises TypeError if they do not follow the contract."""
    if not isinstance(found, Results) or len(found.predictions) != len(examples):
        raise TypeError("a task must return registry.Results with a prediction for each example.")
    return found
