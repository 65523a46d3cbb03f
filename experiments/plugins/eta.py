"""A sampler of your own: eta sampling."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field

from registry import Random, samplers

if TYPE_CHECKING:
    from jaxtyping import Float32, Int
    from torch import Tensor


@samplers.register("eta")
def eta(
    logits: Float32[Tensor, "N V"], rng: Random, /, *, epsilon: Annotated[float, Field(gt=0, lt=1)] = 6e-4
) -> Int[Tensor, " N"]:
    """Leave out tokens less likely than min(epsilon, sqrt(epsilon) exp(-entropy)) (Hewitt, Manning and Liang 2022).

    Where the generator is sure, little of its tail remains; where it is not, nearly all. The paper tries epsilon from
    3e-4 to 4e-3. The most likely token always stays.
    """
    probabilities = logits.softmax(-1)
    entropy = torch.special.entr(probabilities).sum(-1, keepdim=True)
    least = (math.sqrt(epsilon) * (-entropy).exp()).clamp(max=epsilon)
    least = torch.minimum(least, probabilities.amax(-1, keepdim=True))
    kept = probabilities >= least
    # The inverse of the cumulative distribution: one random number per row, in doubles: float32 sums lose the tail.
    cumulative = probabilities.mul_(kept).cumsum(-1, dtype=torch.float64)
    threshold = rng.uniform(len(logits), 1) * cumulative[:, -1:]
    return (kept & (cumulative > threshold)).byte().argmax(-1)
