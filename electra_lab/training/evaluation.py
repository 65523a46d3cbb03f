"""Evaluation on held-out text: in eval mode, with masks and draws that depend on the seed alone."""

from collections.abc import Callable, Collection, Generator
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
) -> Generator[None, None, Evaluation]:
    """Return the losses over all rows, and the metrics of the objective, with gains over baselines if it has any.

    Yields after every batch. It may be left there: nothing that training changes is changed.

    With several processes, each reads its share of the batches, and rank 0 has the result, bit for bit that of one
    process; the others have none.

    accumulate  makes the objective's accumulator; it takes the indices of the rows to return as examples
    examples    how many rows to return, spread over all of them, as neighbours are alike
    """
    places = [(2 * i + 1) * len(batches) // (2 * examples) for i in range(examples)]
    found = accumulate(set(batches.example_ids(places)))
    sums: dict[str, list[Any]] = {}
    tokens = 0
    world = learner.world
    with learner.evaluating(seed):
        mine = batches.in_order(batch_size, device, part=slice(world.rank, None, world.size))
        seen = ((batch, learner.losses(batch, seed, EVALUATION, precision)) for batch in mine)
        for batch, losses in world.in_turn(seen):
            tokens += batch.tokens.numel()
            for name, term in losses.terms.items():
                so_far = sums.get(name, [0.0, 0])
                sums[name] = [so_far[0] + term.sum.double(), so_far[1] + term.count, term.weight]
            found.update(batch, losses)
            yield

    metrics: dict[str, float] = {"loss": 0.0} if sums else {}  # examples without labels have none
    for name, (total, count, weight) in sums.items():
        metrics[f"{name}_loss"] = float(total) / max(int(count), 1)
        metrics["loss"] += float(weight) * metrics[f"{name}_loss"]
    gains = found.gains() if hasattr(found, "gains") else {}
    return Evaluation(tokens, metrics | found.values() | gains, found.examples())


def evaluate(*arguments: Any, **options: Any) -> Evaluation:
    """Return the result of `evaluation` with these arguments, without pauses."""
    running = evaluation(*arguments, **options)
    while True:
        try:
            next(running)
        except StopIteration as end:
            found: Evaluation = end.value
            return found
