"""Min-p sampling, as a package that anybody can install."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field

from registry import Random, samplers

if TYPE_CHECKING:
    from jaxtyping import Float32, Int
    from torch import Tensor


@samplers.register("min_p")
def min_p(
    logits: Float32[Tensor, "N V"], rng: Random, /, *, share: Annotated[float, Field(ge=0, le=1)] = 0.05
) -> Int[Tensor, " N"]:
    """Leave out tokens less likely than `share` of the most likely one (Nguyen et al. 2024, arXiv:2407.01082).

    share = 0 is `temperature`, share = 1 `argmax`.
    """
    probabilities = logits.softmax(-1)
    kept = probabilities >= share * probabilities.amax(-1, keepdim=True)
    cumulative = (probabilities * kept).cumsum(-1, dtype=torch.float64)
    threshold = rng.uniform(len(logits), 1) * cumulative[:, -1:]
    return (kept & (probabilities > 0) & (cumulative > threshold)).byte().argmax(-1)
