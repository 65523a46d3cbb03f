"""Nucleus sampling."""

from typing import Annotated

from jaxtyping import Float32, Int
from pydantic import Field
from torch import Tensor

from electra_lab.samplers._inverse_cdf import inverse_cdf
from registry import Random, samplers


@samplers.register("nucleus")
def nucleus(
    logits: Float32[Tensor, "N V"],
    rng: Random,
    /,
    *,
    p: Annotated[float, Field(gt=0, le=1)] = 0.9,
    temperature: Annotated[float, Field(ge=1e-6)] = 1.0,
) -> Int[Tensor, "N"]:
    """Draw from the smallest set of most likely tokens whose probabilities add up to p or more (Holtzman et al. 2020).

    p = 1 is `temperature`; a small p is `argmax`.
    """
    scores = (logits - logits.amax(-1, keepdim=True)) / temperature
    likely, tokens = scores.softmax(-1).sort(dim=-1, descending=True, stable=True)
    probabilities = likely.double()
    cumulative = probabilities.cumsum(-1)
    # Relative to the sum, which is not exactly 1 in float32: otherwise p = 1 could lose the least likely tokens.
    enough = cumulative - probabilities >= p * cumulative[:, -1:]
    drawn = inverse_cdf(probabilities.masked_fill(enough, 0.0), rng)
    chosen: Tensor = tokens.gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
    return chosen
