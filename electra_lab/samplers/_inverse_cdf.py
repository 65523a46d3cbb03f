"""Drawing from probabilities with one random number a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float64, Int
    from torch import Tensor

    from registry.contracts import Random


def inverse_cdf(probabilities: Float64[Tensor, "N V"], rng: Random) -> Int[Tensor, "N"]:
    """The first index at which the cumulative sum passes a uniform share of the total; rows need not sum to one.

    In float64: float32 sums of 30,522 terms would lose the tail.
    """
    cumulative = probabilities.cumsum(-1)
    threshold = rng.uniform(len(probabilities), 1) * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1).clamp(max=cumulative.shape[-1] - 1)
    # An index without a probability must not be hit, not even by the rounding of a parallel sum.
    possible = probabilities.gather(-1, drawn.unsqueeze(-1)).squeeze(-1) > 0
    return torch.where(possible, drawn, probabilities.argmax(-1))
