"""Evaluation on held-out text: in eval mode, with masks and draws that depend on the seed alone."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from electra_lab.training.device import Precision
from electra_lab.training.random import EVALUATION
from electra_lab.training.step import Learner
from registry import Accumulator, Batches, Example

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
    """Yield None after each batch, and at last the losses over all rows and the metrics of the objective.

    The caller may stop after any batch; training is not affected. With several processes, each reads its share of the
    batches. Rank 0 has the result, bit for bit that of one process; the other ranks have an empty one.

    accumulate  makes the objective's accumulator from the indices of the rows that are returned as examples
    examples    number of rows to return, spread over all of them, as neighbouring rows resemble each other
    """
    places = [(2 * i + 1) * len(batches) // (2 * examples) for i in range(examples)]
    accumulator = accumulate(set(batches.example_ids(places)))
    sums: dict[str, list[Any]] = {}
    tokens, world = 0, learner.world
    with learner.evaluating(seed):
        mine = batches.in_order(batch_size, device, part=slice(world.rank, None, world.size))
        seen = ((batch, learner.losses(batch, seed, EVALUATION, precision)) for batch in mine)
        for batch, losses in world.in_turn(seen):
            tokens += batch.tokens.numel()
            for name, term in losses.terms.items():
                so_far = sums.get(name, [0.0, 0])
                sums[name] = [so_far[0] + term.sum.double(), so_far[1] + term.count, term.weight]
            accumulator.update(batch, losses)
            yield None

    metrics: dict[str, float] = {"loss": 0.0} if sums else {}  # examples without labels have none
    for name, (total, count, weight) in sums.items():
        metrics[f"{name}_loss"] = float(total) / max(int(count), 1)
        metrics["loss"] += float(weight) * metrics[f"{name}_loss"]
    gains = accumulator.gains() if hasattr(accumulator, "gains") else {}  # over baselines
    yield Evaluation(tokens, metrics | accumulator.values() | gains, accumulator.examples())


def evaluate(*arguments: Any, **options: Any) -> Evaluation:
    """Return the result of `evaluation` with these arguments."""
    *_, found = evaluation(*arguments, **options)
    assert found is not None
    return found
