"""A masking strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field

from registry import Masked, Random, Vocabulary, count, masking_strategies

if TYPE_CHECKING:
    from jaxtyping import Bool, Int
    from torch import Tensor


@masking_strategies.register("my_masking_strategy")
def my_masking_strategy(
    tokens: Int[Tensor, "B T"],
    maskable: Bool[Tensor, "B T"],
    vocabulary: Vocabulary,
    rng: Random,
    /,
    *,
    mask_prob: Annotated[float, Field(gt=0, le=1)] = 0.15,
    replace_prob: Annotated[float, Field(ge=0, le=1)] = 0.85,
    random_prob: Annotated[float, Field(ge=0, le=1)] = 0.0,
) -> Masked:
    """Mask tokens at random, each with the same probability.

    mask_prob     share of the tokens that are predicted
    replace_prob  share of these that become [MASK]
    random_prob   share of these that become a random token; the others stay
    """
    rows, length = tokens.shape
    # Order the positions at random, those that must not be masked last. A scheduled mask_prob is a tensor.
    keys = rng.uniform(rows, length).double() + torch.arange(length, device=tokens.device) * 2.0**-40  # no ties
    slots = length if isinstance(mask_prob, torch.Tensor) else count(mask_prob, length)
    positions = keys.masked_fill(~maskable, -1.0).topk(slots).indices  # [B K]
    numbers = count(mask_prob, maskable.sum(-1)).unsqueeze(-1)  # [B 1]
    valid = torch.arange(slots, device=tokens.device) < numbers
    # Choose what the generator sees at these positions.
    kind = rng.uniform(rows, slots)
    drawn = vocabulary.ordinary_ids[(rng.uniform(rows, slots) * len(vocabulary.ordinary_ids)).long()]
    originals = tokens.gather(1, positions)
    seen = torch.where(kind < replace_prob + random_prob, drawn, originals)
    seen = torch.where(kind < replace_prob, vocabulary.mask_id, seen)
    return Masked(tokens.scatter(1, positions, torch.where(valid, seen, originals)), positions, valid)
