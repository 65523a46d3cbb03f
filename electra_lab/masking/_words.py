"""Words and choices of them, for strategies that mask more than single tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from electra_lab.masking._uniform import counts, random_keys, slots_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Int
    from torch import Tensor

    from registry.contracts import Random, Vocabulary


def word_starts(
    tokens: Int[Tensor, "B T"], maskable: Bool[Tensor, "B T"], vocabulary: Vocabulary
) -> Bool[Tensor, "B T"]:
    """Where a word begins: at a token that begins one, and at whatever is maskable after something that is not."""
    before = torch.nn.functional.pad(maskable, (1, 0))[:, :-1]
    return maskable & (vocabulary.word_start[tokens] | ~before)


def random_order(candidates: Bool[Tensor, "B T"], rng: Random) -> Int[Tensor, "B T"]:
    """The candidates' positions in random order, then all others."""
    return random_keys(candidates, rng).masked_fill(~candidates, 2.0).argsort(-1)


def as_slots(
    chosen: Bool[Tensor, "B T"], order: Int[Tensor, "B T"], maskable: Bool[Tensor, "B T"], mask_prob: float | Tensor
) -> tuple[Int[Tensor, "B K"], Bool[Tensor, "B K"]]:
    """A choice of tokens as positions and valid. A row in which nothing fitted gets its first candidate's token."""
    needed = counts(maskable, mask_prob) > 0
    first = torch.zeros_like(chosen).scatter(1, order[:, :1], True)
    chosen = torch.where((needed & ~chosen.any(-1)).unsqueeze(-1), first, chosen)
    positions = chosen.int().argsort(dim=-1, descending=True, stable=True)[:, : slots_of(mask_prob, maskable.shape[1])]
    return positions, chosen.gather(1, positions)
