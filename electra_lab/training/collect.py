"""The outputs of a task's rows, collected batch by batch, and its results."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import chain, islice
from typing import Any, Self

from registry import Batch, Example, Losses, Metric, Results, Row, Task, tasks, using


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
        """The results over all rows; read it after the last one."""
        with using_task(self._task):
            return checked(self._task.results(self._examples, self._rows, self._of_examples()), self._examples)

    def answers(self) -> Sequence[Mapping[str, Any]]:
        """Return the predictions for new examples, after the last row."""
        if not hasattr(self._task, "answers"):
            return self.results.predictions
        with using_task(self._task):
            found: Sequence[Mapping[str, Any]] = self._task.answers(self._examples, self._rows, self._of_examples())
            return found

    def _of_examples(self) -> list[list[dict[str, Any]]]:
        """Return the outputs of the rows of each example."""
        numbered = iter([self._outputs[number] for number in range(len(self._sizes))])
        return [list(islice(numbered, len(rows))) for rows in self._rows]


def checked(found: object, examples: Sequence[Any]) -> Results:
    """Return the results of a task. Raises TypeError if they do not follow the contract."""
    if not isinstance(found, Results) or len(found.predictions) != len(examples):
        raise TypeError("a task must return registry.Results with a prediction for each example.")
    for prediction in found.predictions:
        if not isinstance(prediction, Mapping) or not {"id", "prediction"} <= prediction.keys():
            raise TypeError(f"a prediction must be a mapping with 'id' and 'prediction', is {prediction!r:.80}.")
        try:
            json.dumps(prediction)
        except (TypeError, ValueError) as error:
            raise TypeError(f"a prediction must have JSON values ({error}), is {prediction!r:.80}.") from None
    return found


def using_task(task: Any) -> AbstractContextManager[None]:
    """Blame a plug-in task for errors in code that uses its results."""
    return using(*(entry for entry in tasks.plugged_in() if entry.component is type(task)))
