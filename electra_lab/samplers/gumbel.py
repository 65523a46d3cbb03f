"""Gumbel-max sampling."""

from typing import Annotated

from jaxtyping import Float32, Int
from pydantic import Field
from torch import Tensor

from electra_lab.samplers._weights import by_rows, weights_of
from registry import Random, samplers


@samplers.register("gumbel", unbiased=lambda *, temperature: temperature == 1.0)
def gumbel(
    logits: Float32[Tensor, "N V"], rng: Random, /, *, temperature: Annotated[float, Field(ge=1e-6)] = 1.0
) -> Int[Tensor, " N"]:
    """Draw from softmax(logits / temperature) by Gumbel-max, as google-research/electra does.

    The noise is float32 in every precision: in bf16 the largest uniform number is 0.996, and the tail of the vocabulary
    would never be drawn. It takes one random number per token; `temperature` draws the same distribution from one per
    row.
    """

    def draw(logits: Tensor, numbers: Tensor) -> Tensor:
        # The largest log(weight) - log(-log(number)) is where weight / log(number) is least.
        return (weights_of(logits, temperature) / numbers.log()).argmin(-1)

    return by_rows(draw, logits, rng, logits.shape[-1])
