"""Held-out evaluation: in eval mode, over the whole split, with masks and draws that depend on the seed alone."""

from collections.abc import Callable, Collection
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
    metrics: dict[str, float]
    examples: list[Example]


@torch.no_grad()
def evaluate(
    learner: Learner,
    batches: Batches,
    accumulate: Accumulate,
    *,
    seed: int,
    batch_size: int,
    precision: Precision,
    device: torch.device,
    examples: int = 0,
) -> Evaluation:
    """Return the losses over all rows, and the metrics of the objective.

    accumulate  makes the objective's accumulator; it takes the indices of the rows to return as examples
    examples    how many rows to return, spread over the whole split, as neighbours are alike
    """
    found = accumulate({(2 * i + 1) * len(batches) // (2 * examples) for i in range(examples)})
    sums: dict[str, list[Any]] = {}
    with learner.evaluating(seed):
        for batch in batches.in_order(batch_size, device):
            losses = learner.losses(batch, seed, EVALUATION, precision)
            for name, term in losses.terms.items():
                so_far = sums.get(name, [0.0, 0])
                sums[name] = [so_far[0] + term.sum.double(), so_far[1] + term.count, term.weight]
            found.update(batch, losses)

    metrics: dict[str, float] = {"loss": 0.0}
    for name, (total, count, weight) in sums.items():
        metrics[f"{name}_loss"] = float(total) / max(int(count), 1)
        metrics["loss"] += float(weight) * metrics[f"{name}_loss"]
    return Evaluation(metrics | found.values(), found.examples())
