"""Sampling by the inverse of the cumulative distribution."""

from typing import Annotated

from jaxtyping import Float32, Int
from pydantic import Field
from torch import Tensor

from electra_lab.model.draws import inverse_cdf
from electra_lab.samplers.gumbel import by_rows, weights_of
from registry import Random, samplers


@samplers.register("temperature", unbiased=lambda *, temperature: temperature == 1.0)
def temperature(
    logits: Float32[Tensor, "N V"], rng: Random, /, *, temperature: Annotated[float, Field(ge=1e-6)] = 1.0
) -> Int[Tensor, " N"]:
    """Draw from softmax(logits / temperature) with one random number per row, by the inverse CDF.

    The distribution is that of `gumbel`, at a V-th of its random numbers. The limit of a small temperature is `argmax`.
    """

    def draw(logits: Tensor, numbers: Tensor) -> Tensor:
        return inverse_cdf(weights_of(logits, temperature), numbers)

    return by_rows(draw, logits, rng, 1).squeeze(-1)
