"""Drawing from weights, and the weights of logits."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Float32, Float64, Int
from torch import Tensor
from torch._subclasses import FakeTensor

from registry import Random

BLOCK = 256  # weights that are summed before they are compared one by one
ROWS, WEIGHTS = 16, 1 << 16  # worked on at a time on the CPU, whichever is more: many more would not stay in its cache


def by_rows(
    draw: Callable[[Tensor, Tensor], Int[Tensor, " n"]], weights: Float32[Tensor, "N V"], rng: Random, width: int
) -> Int[Tensor, " N"]:
    """Return draw(weights, numbers) with `width` random numbers a row; on the CPU, some rows at a time."""
    rows, some = len(weights), max(ROWS, WEIGHTS // weights.shape[-1])
    if weights.device.type != "cpu" or torch.compiler.is_compiling() or rows <= some:
        return draw(weights, rng.uniform(rows, width))
    parts = zip(torch.split(weights, some), rng.in_parts(some, rows, width), strict=True)
    if isinstance(weights, FakeTensor):  # a forecast of memory, of which each part takes the same
        return draw(*next(parts)).new_empty(rows)
    return torch.cat([draw(*part) for part in parts])


def weights_of(logits: Float32[Tensor, "N V"], temperature: float | Tensor) -> Float32[Tensor, "N V"]:
    """Return softmax(logits / temperature)."""
    if isinstance(temperature, float) and temperature == 1.0:
        return logits.softmax(-1)
    # The largest logit is subtracted first, so that a small temperature cannot produce infinity minus infinity.
    return ((logits - logits.amax(-1, keepdim=True)) / temperature).softmax(-1)


def inverse_cdf(weights: Float[Tensor, "N V"], numbers: Float32[Tensor, "N 1"]) -> Int[Tensor, " N"]:
    """Return the first index at which the cumulative sum of weights exceeds the share `numbers` of the total.

    Rows need not sum to 1. Sums are float64: those of 30,522 terms in float32 would lose the tail. First a block is
    chosen by the sums of all blocks, then one of its weights, so that few numbers are float64.
    """
    whole = weights.shape[-1] // BLOCK * BLOCK
    blocks = weights[:, :whole].view(len(weights), whole // BLOCK, BLOCK).sum(-1, dtype=torch.float64)
    rest = weights[:, whole:].sum(-1, keepdim=True, dtype=torch.float64)
    block, share = _first_above(torch.cat([blocks, rest], dim=-1), numbers.double())
    places = block * BLOCK + torch.arange(BLOCK, device=weights.device)
    inside = weights.gather(-1, places.clamp(max=weights.shape[-1] - 1)).double()
    place, _ = _first_above(inside.masked_fill(places >= weights.shape[-1], 0.0), share)
    return places.gather(-1, place).squeeze(-1)


def _first_above(
    weights: Float64[Tensor, "N M"], share: Float64[Tensor, "N 1"]
) -> tuple[Int[Tensor, "N 1"], Float64[Tensor, "N 1"]]:
    """Return the first index whose cumulative weight exceeds `share` of the total, and the share of its own weight
    at which it does.
    """
    cumulative = weights.cumsum(-1)
    threshold = share * cumulative[:, -1:]
    index = torch.searchsorted(cumulative, threshold, right=True).clamp(max=weights.shape[-1] - 1)
    # An index without weight must not be drawn, not even through the rounding of a parallel sum.
    index = torch.where(weights.gather(-1, index) > 0, index, weights.argmax(-1, keepdim=True))
    weight = weights.gather(-1, index)
    within = (threshold - (cumulative.gather(-1, index) - weight)) / weight
    return index, within.clamp(0.0, 1.0)


def ascending(weights: Float32[Tensor, "N V"]) -> Float32[Tensor, "N V"]:
    """Return the weights of each row in order. On the CPU by numpy, which sorts in a tenth of torch's time."""
    if weights.device.type != "cpu" or torch.compiler.is_compiling():
        return weights.sort(-1).values
    ordered = weights.numpy().copy()
    ordered.sort(-1)
    return torch.from_numpy(ordered)
