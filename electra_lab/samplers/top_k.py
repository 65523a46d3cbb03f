"""Sampling from the most likely tokens."""

from typing import Annotated

from jaxtyping import Float32, Int
from pydantic import Field
from torch import Tensor

from electra_lab.samplers._inverse_cdf import inverse_cdf
from registry import Random, samplers


@samplers.register("top_k")
def top_k(
    logits: Float32[Tensor, "N V"],
    rng: Random,
    /,
    *,
    k: Annotated[int, Field(ge=1)] = 50,
    temperature: Annotated[float, Field(ge=1e-6)] = 1.0,
) -> Int[Tensor, "N"]:
    """Draw from the k most likely tokens (Fan et al. 2018), by softmax(logits / temperature) among them.

    k above the vocabulary's size is `temperature`; k = 1 is `argmax`.
    """
    best, tokens = logits.topk(min(k, logits.shape[-1]), dim=-1)
    drawn = inverse_cdf(((best - best[:, :1]) / temperature).softmax(-1).double(), rng)
    return tokens.gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
