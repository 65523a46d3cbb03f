"""Gumbel-max sampling."""

from typing import Annotated

from jaxtyping import Float32, Int
from pydantic import Field
from torch import Tensor

from registry import Random, samplers


@samplers.register("gumbel", unbiased=lambda *, temperature: temperature == 1.0)
def gumbel(
    logits: Float32[Tensor, "N V"], rng: Random, /, *, temperature: Annotated[float, Field(ge=1e-6)] = 1.0
) -> Int[Tensor, "N"]:
    """Draw from softmax(logits / temperature) by Gumbel-max, as google-research/electra does.

    The noise is float32 in every precision: in bf16 the largest uniform number is 0.996, and the tail of the vocabulary
    would never be drawn. It takes one random number per token; `temperature` draws the same distribution from one per
    row.
    """
    # The largest logit is subtracted first, so that a small temperature cannot produce infinity minus infinity.
    scores = (logits - logits.amax(-1, keepdim=True)) / temperature
    noise = rng.uniform(*logits.shape).log_().neg_().log_().neg_()
    return (scores + noise).argmax(-1)
