"""Words and choices of words, for strategies that mask more than single tokens."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from electra_lab.masking.replace_prob import random_keys, slots_of
from registry import Random, Vocabulary, count


def word_starts(
    tokens: Int[Tensor, "B T"], maskable: Bool[Tensor, "B T"], vocabulary: Vocabulary
) -> Bool[Tensor, "B T"]:
    """Mark the beginnings of words: tokens that begin one, and any maskable token after one that is not maskable."""
    before = torch.nn.functional.pad(maskable, (1, 0))[:, :-1]
    return maskable & (vocabulary.word_start[tokens] | ~before)


def random_order(candidates: Bool[Tensor, "B T"], rng: Random) -> Int[Tensor, "B T"]:
    """Return the candidates' positions in random order, then all others."""
    return random_keys(candidates, rng).masked_fill(~candidates, 2.0).argsort(-1)


def as_slots(
    chosen: Bool[Tensor, "B T"], order: Int[Tensor, "B T"], maskable: Bool[Tensor, "B T"], mask_prob: float | Tensor
) -> tuple[Int[Tensor, "B K"], Bool[Tensor, "B K"]]:
    """Turn a choice of tokens into positions and valid. A row in which nothing fitted gets its first candidate."""
    needed = count(mask_prob, maskable.sum(-1)) > 0
    first = torch.zeros_like(chosen).scatter(1, order[:, :1], True)
    chosen = torch.where((needed & ~chosen.any(-1)).unsqueeze(-1), first, chosen)
    positions = chosen.int().argsort(dim=-1, descending=True, stable=True)[:, : slots_of(mask_prob, maskable.shape[1])]
    return positions, chosen.gather(1, positions)
