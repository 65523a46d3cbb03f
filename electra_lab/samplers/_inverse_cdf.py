"""Sampling with one random number per row."""

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from registry import Random


def inverse_cdf(probabilities: Float64[Tensor, "N V"], rng: Random) -> Int[Tensor, "N"]:
    """Return the first index at which the cumulative sum exceeds a uniform share of the total. Rows need not sum to 1.

    In float64: float32 sums of 30,522 terms would lose the tail.
    """
    cumulative = probabilities.cumsum(-1)
    threshold = rng.uniform(len(probabilities), 1) * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1).clamp(max=cumulative.shape[-1] - 1)
    # An index without probability must not be drawn, not even through the rounding of a parallel sum.
    possible = probabilities.gather(-1, drawn.unsqueeze(-1)).squeeze(-1) > 0
    return torch.where(possible, drawn, probabilities.argmax(-1))
