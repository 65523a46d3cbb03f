"""Gumbel-max sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from registry import samplers

if TYPE_CHECKING:
    from jaxtyping import Float32, Int
    from torch import Tensor

    from registry.contracts import Random


@samplers.register("gumbel")
def gumbel(
    logits: Float32[Tensor, "N V"], rng: Random, /, *, temperature: Annotated[float, Field(ge=1e-6)] = 1.0
) -> Int[Tensor, "N"]:
    """Draw from softmax(logits / temperature) by Gumbel-max, as google-research/electra does.

    Noise is float32 whatever the model runs in: in bf16 the uniform's largest value is 0.996, and the tail of the
    vocabulary is never drawn. One number for each token; `temperature` draws the same distribution from one a row.
    """
    # The largest logit is taken off first, so that a small temperature cannot make infinity minus infinity.
    scores = (logits - logits.amax(-1, keepdim=True)) / temperature
    noise = rng.uniform(*logits.shape).log_().neg_().log_().neg_()
    return (scores + noise).argmax(-1)
