"""What samplers share: weights of logits, and drawing for some rows at a time. `model/draws.py` draws from weights."""

from collections.abc import Callable

import torch
from jaxtyping import Float32, Int
from torch import Tensor
from torch._subclasses import FakeTensor

from registry import Random

# Worked on at a time, whichever is more: on the CPU, many more would not stay in its cache; elsewhere, the numbers of a
# large batch would take several times the memory of its logits.
ROWS = 16
WEIGHTS = {"cpu": 1 << 16}
MOST = 1 << 26


def by_rows(
    draw: Callable[[Tensor, Tensor], Int[Tensor, "n ..."]], weights: Float32[Tensor, "N V"], rng: Random, width: int
) -> Int[Tensor, "N ..."]:
    """Return draw(weights, numbers) with `width` random numbers a row, some rows at a time."""
    rows, some = len(weights), max(ROWS, WEIGHTS.get(weights.device.type, MOST) // weights.shape[-1])
    if torch.compiler.is_compiling() or rows <= some:
        return draw(weights, rng.uniform(rows, width))
    parts = zip(torch.split(weights, some), rng.in_parts(some, rows, width), strict=True)
    if isinstance(weights, FakeTensor):  # a forecast of memory, of which each part takes the same
        first = draw(*next(parts))
        return first.new_empty(rows, *first.shape[1:])
    return torch.cat([draw(*part) for part in parts])


def weights_of(logits: Float32[Tensor, "N V"], temperature: float | Tensor) -> Float32[Tensor, "N V"]:
    """Return softmax(logits / temperature)."""
    if isinstance(temperature, float) and temperature == 1.0:
        return logits.softmax(-1)
    # The largest logit is subtracted first, so that a small temperature cannot produce infinity minus infinity.
    return ((logits - logits.amax(-1, keepdim=True)) / temperature).softmax(-1)


def ascending(weights: Float32[Tensor, "N V"]) -> Float32[Tensor, "N V"]:
    """Return the weights of each row in order. On the CPU by numpy, which sorts in a tenth of torch's time."""
    if weights.device.type != "cpu" or torch.compiler.is_compiling():
        return weights.sort(-1).values
    ordered = weights.numpy().copy()
    ordered.sort(-1)
    return torch.from_numpy(ordered)
