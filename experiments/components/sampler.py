"""A sampler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from registry import Random, samplers

if TYPE_CHECKING:
    from jaxtyping import Float32, Int
    from torch import Tensor


@samplers.register("my_sampler")
def my_sampler(
    logits: Float32[Tensor, "N V"], rng: Random, /, *, temperature: Annotated[float, Field(gt=0)] = 1.0
) -> Int[Tensor, " N"]:
    """Draw from the softmax: the largest of p / Exponential(1).

    temperature  divides the logits
    """
    probabilities = (logits / temperature).softmax(-1)
    return (probabilities / -rng.uniform(*logits.shape).log()).argmax(-1)
