"""Evaluation on held-out text: in eval mode, with masks and draws that depend on the seed alone."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any, Self

import torch

from electra_lab.training.execution import Precision
from electra_lab.training.random import EVALUATION, Streams
from electra_lab.training.step import Learner
from registry import Accumulator, Batch, Batches, Example, Losses, Metric, Results, Row, Task, tasks, using

Accumulate = Callable[[Collection[int]], Accumulator]


@dataclass(frozen=True)
class Evaluation:
    tokens: int  # positions that were read, padding included
    metrics: dict[str, float]
    examples: list[Example]


@torch.no_grad()
def evaluation(
    learner: Learner,
    batches: Batches,
    accumulate: Accumulate,
    *,
    seed: int,
    batch_size: int,
    precision: Precision,
    device: torch.device,
    examples: int = 0,
) -> Iterator[Evaluation | None]:
    """Yield None after each batch, and finally the losses over all rows and the metrics of the objective.

    The caller may stop after any batch; training is not affected. With several processes, each reads its share of the
    batches. Rank 0 has the result, bit for bit that of one process; the other ranks have an empty one.

    accumulate  factory of the objective's accumulator: row indices of the returned examples -> accumulator
    examples    number of rows to return, spread over all of them, as neighbouring rows resemble each other
    """
    # Choose the rows of the examples: the middles of equal parts.
    places = [(2 * i + 1) * len(batches) // (2 * examples) for i in range(examples)]
    accumulator = accumulate(set(batches.example_ids(places)))
    sums: dict[str, list[Any]] = {}
    tokens, world = 0, learner.world
    with learner.evaluating(seed):
        share = batches.in_order(batch_size, device, part=slice(world.rank, None, world.size))

        def losses_of(batch: Batch) -> Losses:
            return learner.losses(batch, Streams.of(seed, EVALUATION, batch.example_ids), precision)

        pairs = ((batch, losses_of(batch)) for batch in share)
        for batch, losses in world.in_turn(pairs):
            tokens += batch.tokens.numel()
            for name, term in losses.terms.items():
                so_far = sums.get(name, [0.0, 0])
                sums[name] = [so_far[0] + term.sum.double(), so_far[1] + term.count, term.weight]
            accumulator.update(batch, losses)
            yield None

    # Means over all rows, each term by its count
    metrics: dict[str, float] = {"loss": 0.0} if sums else {}  # examples without labels have none
    for name, (total, count, weight) in sums.items():
        metrics[f"{name}_loss"] = float(total) / max(int(count), 1)
        metrics["loss"] += float(weight) * metrics[f"{name}_loss"]
    gains = accumulator.gains() if hasattr(accumulator, "gains") else {}  # over baselines
    yield Evaluation(tokens, metrics | accumulator.values() | gains, accumulator.examples())


def evaluate(*arguments: Any, **options: Any) -> Evaluation:
    """Return the result of `evaluation` with these arguments."""
    *_, result = evaluation(*arguments, **options)
    assert result is not None
    return result


class Collected:
    """An accumulator of a task on one split.

    examples   examples of the split
    rows       rows of each example
    of_tokens  names of the outputs with a value per token
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
        if self._task.answers is None:
            return self.results.predictions
        with using_task(self._task):
            return self._task.answers(self._examples, self._rows, self._of_examples())

    def _of_examples(self) -> list[list[dict[str, Any]]]:
        """Return the outputs of the rows of each example."""
        numbered = iter([self._outputs[number] for number in range(len(self._sizes))])
        return [list(islice(numbered, len(rows))) for rows in self._rows]


def checked(results: object, examples: Sequence[Any]) -> Results:
    """Return the results of a task. Raises TypeError if they do not follow the contract."""
    if not isinstance(results, Results) or len(results.predictions) != len(examples):
        raise TypeError("a task must return registry.Results with a prediction for each example.")
    for prediction in results.predictions:
        if not isinstance(prediction, Mapping) or not {"id", "prediction"} <= prediction.keys():
            raise TypeError(f"a prediction must be a mapping with 'id' and 'prediction', is {prediction!r:.80}.")
        try:
            json.dumps(prediction)
        except (TypeError, ValueError) as error:
            raise TypeError(f"a prediction must have JSON values ({error}), is {prediction!r:.80}.") from None
    return results


def using_task(task: Any) -> AbstractContextManager[None]:
    """Blame a plug-in task for errors in code that uses its results."""
    return using(*(entry for entry in tasks.plugged_in() if entry.component is type(task)))
