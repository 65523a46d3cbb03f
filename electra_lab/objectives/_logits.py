"""What the lab does to logits before a sampler sees them; the same for every objective."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from registry.contracts import Random, Vocabulary


def full_precision(logits: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """At least float32: what losses are computed in."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


@torch.no_grad()
def draw(
    sampler: Callable[..., Tensor], logits: Float[Tensor, "B K V"], vocabulary: Vocabulary, rng: Random
) -> Int[Tensor, "B K"]:
    """One token a slot, from logits of any precision, never a special one.

    In float32, with autocast off: in bf16 the smallest probabilities vanish, and cumulative sums lose the tail.
    """
    with torch.autocast(logits.device.type, enabled=False):
        allowed = logits.float().masked_fill(vocabulary.is_special, float("-inf"))
        return sampler(allowed.flatten(0, 1), rng).view(logits.shape[:2])
