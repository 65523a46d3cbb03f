"""Sampling by the inverse of the cumulative distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from electra_lab.samplers._inverse_cdf import inverse_cdf
from registry import samplers

if TYPE_CHECKING:
    from jaxtyping import Float32, Int
    from torch import Tensor

    from registry.contracts import Random


@samplers.register("temperature")
def temperature(
    logits: Float32[Tensor, "N V"], rng: Random, /, *, temperature: Annotated[float, Field(ge=1e-6)] = 1.0
) -> Int[Tensor, "N"]:
    """Draw from softmax(logits / temperature) with one random number a row, by the inverse CDF.

    The distribution of `gumbel` with a V-th of its random numbers. The limit of a small temperature is `argmax`.
    """
    scores = (logits - logits.amax(-1, keepdim=True)) / temperature
    return inverse_cdf(scores.softmax(-1).double(), rng)
