"""Sampling from the most likely tokens."""

from typing import Annotated

from jaxtyping import Float32, Int
from pydantic import Field
from torch import Tensor

from electra_lab.model.draws import inverse_cdf
from electra_lab.samplers.gumbel import weights_of
from registry import Random, samplers


@samplers.register("top_k")
def top_k(
    logits: Float32[Tensor, "N V"],
    rng: Random,
    /,
    *,
    k: Annotated[int, Field(ge=1, le=10**9)] = 50,
    temperature: Annotated[float, Field(ge=1e-6)] = 1.0,
) -> Int[Tensor, " N"]:
    """Draw from the k most likely tokens (Fan et al. 2018), by softmax(logits / temperature) among them.

    k above the vocabulary's size is `temperature`; k = 1 is `argmax`.
    """
    best, tokens = logits.topk(min(k, logits.shape[-1]), dim=-1)
    drawn = inverse_cdf(weights_of(best, temperature), rng.uniform(len(logits), 1))
    return tokens.gather(-1, drawn).squeeze(-1)
