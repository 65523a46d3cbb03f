"""Nucleus sampling."""

from typing import Annotated

from jaxtyping import Float32, Int
from pydantic import Field
from torch import Tensor

from electra_lab.model.draws import inverse_cdf
from electra_lab.samplers.gumbel import ascending, by_rows, weights_of
from registry import Random, samplers


def _nucleus(weights: Float32[Tensor, "n V"], p: float | Tensor) -> Float32[Tensor, "n V"]:
    """Return the weights of the nucleus, and 0 for other tokens."""
    # Only the least weight of the nucleus is needed, so values are sorted without their tokens.
    ordered = ascending(weights)
    cumulative = ordered.double().cumsum(-1)
    total = cumulative[:, -1:]
    # A token belongs to it if those before it, from the most likely on, have less than p. Relative to the sum, which is
    # not exactly 1 in float32: otherwise p = 1 could lose the least likely tokens.
    size = (total - cumulative < p * total).sum(-1, keepdim=True).clamp(min=1)
    least = ordered.gather(-1, weights.shape[-1] - size)
    above, level = weights > least, weights == least
    first = level.cumsum(-1) <= size - above.sum(-1, keepdim=True)  # of equal ones, those with smaller ids
    return weights.where(above | (level & first), 0.0)


@samplers.register("nucleus")
def nucleus(
    logits: Float32[Tensor, "N V"],
    rng: Random,
    /,
    *,
    p: Annotated[float, Field(gt=0, le=1)] = 0.9,
    temperature: Annotated[float, Field(ge=1e-6)] = 1.0,
) -> Int[Tensor, " N"]:
    """Draw from the smallest set of most likely tokens whose probabilities add up to p or more (Holtzman et al. 2020).

    p = 1 is `temperature`; a small p is `argmax`.
    """

    def draw(logits: Tensor, numbers: Tensor) -> Tensor:
        return inverse_cdf(_nucleus(weights_of(logits, temperature), p), numbers)

    return by_rows(draw, logits, rng, 1).squeeze(-1)
