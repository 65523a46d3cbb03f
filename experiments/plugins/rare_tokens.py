"""A masking strategy of your own: rare tokens are masked more often than frequent ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field

from registry import Masked, Random, Vocabulary, count, masking_strategies

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64, Int
    from torch import Tensor


@masking_strategies.register("rare_tokens")
def rare_tokens(
    tokens: Int[Tensor, "B T"],
    maskable: Bool[Tensor, "B T"],
    vocabulary: Vocabulary,
    rng: Random,
    /,
    *,
    mask_prob: Annotated[float, Field(gt=0, le=1)] = 0.15,
    replace_prob: Annotated[float, Field(ge=0, le=1)] = 0.85,
    random_prob: Annotated[float, Field(ge=0, le=1)] = 0.0,
    power: Annotated[float, Field(ge=0, le=2)] = 0.5,
) -> Masked:
    """Mask as many tokens as `replace_prob`, drawn with weights (1 + training frequency)^-power.

    The square root, power 0.5, is that of XLM (Lample and Conneau 2019, section 3.3); power 0 is `replace_prob`.
    """
    rows, length = tokens.shape
    weights = -power * (1 + vocabulary.counts[tokens].double()).log()
    keys = (weights + _gumbel(rng, rows, length)).masked_fill(~maskable, -math.inf)
    positions = keys.topk(length if isinstance(mask_prob, torch.Tensor) else count(mask_prob, length)).indices
    valid = torch.arange(positions.shape[1], device=tokens.device) < count(mask_prob, maskable.sum(-1)).unsqueeze(-1)

    kind = rng.uniform(*positions.shape)
    drawn = (rng.uniform(*positions.shape) * len(vocabulary.ordinary_ids)).long()
    originals = tokens.gather(1, positions)
    seen = torch.where(kind < replace_prob + random_prob, vocabulary.ordinary_ids[drawn], originals)
    seen = torch.where(kind < replace_prob, vocabulary.mask_id, seen)
    return Masked(tokens.scatter(1, positions, torch.where(valid, seen, originals)), positions, valid)


def _gumbel(rng: Random, rows: int, length: int) -> Float64[Tensor, "B T"]:
    """Return noise with which the largest keys are a weighted draw without replacement (Kool et al. 2019).

    The position breaks ties, which 23 random bits do have, in the same way on every device.
    """
    uniform = rng.uniform(rows, length).double()
    return -(-uniform.log()).log() + torch.arange(length, device=uniform.device) * 2.0**-40
