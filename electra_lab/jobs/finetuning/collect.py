"""The outputs of a task's rows, collected batch by batch, and its results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
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
        self._sizes = [len(row.tokens) for each in rows for row in each]
        self._outputs: dict[int, Mapping[str, Any]] = {}  # by the number of the row

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return self._task.metrics

    def update(self, batch: Batch, losses: Losses) -> None:
        arrays = {name: each.cpu().numpy() for name, each in losses.outputs.items()}
        for place, row in enumerate(batch.example_ids.tolist()):
            size = self._sizes[row]
            self._outputs[row] = {
                name: each[place, :size] if name in self._of_tokens else each[place] for name, each in arrays.items()
            }

    def merge(self, other: Self) -> None:
        self._outputs |= other._outputs

    def values(self) -> dict[str, float]:
        return dict(self.results.metrics)

    def examples(self) -> list[Example]:
        return []

    @cached_property
    def results(self) -> Results:
        """The results over all rows; call it when they have all been seen."""
        numbers = iter(range(len(self._sizes)))
        outputs = [[self._outputs[next(numbers)] for _ in each] for each in self._rows]
        found = self._task.results(self._examples, self._rows, outputs)
        return checked(found, self._examples)


def checked(found: object, examples: Sequence[Any]) -> Results:
    """Return the results of a task. Raises TypeError if they do not follow the contract."""
    if not isinstance(found, Results) or len(found.predictions) != len(examples):
        raise TypeError("a task must return registry.Results with a prediction for each example.")
    return found
