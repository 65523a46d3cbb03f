"""What the masking strategies share: how many tokens, which ones, and what stands there instead."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from registry.contracts import Masked

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64, Int

    from registry.contracts import Random, Vocabulary


def slots_of(mask_prob: float | Tensor, length: int) -> int:
    """K: the slots that a row of `length` positions has for masked tokens; all, where mask_prob is a tensor.

    A mask_prob that changes must not change shapes. The lab knows the largest that it becomes, and cuts.
    """
    return length if isinstance(mask_prob, Tensor) else math.ceil(mask_prob * length - 1e-9)


def counts(maskable: Bool[Tensor, "B T"], mask_prob: float | Tensor) -> Int[Tensor, "B"]:
    """ceil(mask_prob * m - 1e-9) for each row's number m of maskable tokens, as `slots_of` has it.

    In doubles: in float32, ceil(.15 * 100) is 16.
    """
    return (maskable.sum(-1).double() * mask_prob - 1e-9).ceil().long()


def random_keys(maskable: Bool[Tensor, "B T"], rng: Random) -> Float64[Tensor, "B T"]:
    """Numbers in (0, 1) to order positions by.

    Doubles hold the 23 random bits and the position: no two keys are equal, so no device breaks ties its own way.
    """
    rows, length = maskable.shape
    return rng.uniform(rows, length).double() + torch.arange(length, device=maskable.device) * 2.0**-40


def uniform_positions(
    maskable: Bool[Tensor, "B T"], mask_prob: float | Tensor, rng: Random
) -> tuple[Int[Tensor, "B K"], Bool[Tensor, "B K"]]:
    """In each row exactly count(maskable) distinct maskable positions, every subset equally likely.

    K is the same for all rows; `valid` marks the slots that count, which come first.
    """
    slots = slots_of(mask_prob, maskable.shape[1])
    positions = random_keys(maskable, rng).masked_fill(~maskable, -1.0).topk(slots, dim=-1).indices
    valid = torch.arange(slots, device=maskable.device) < counts(maskable, mask_prob).unsqueeze(-1)
    return positions, valid


def corrupt(
    tokens: Int[Tensor, "B T"],
    positions: Int[Tensor, "B K"],
    valid: Bool[Tensor, "B K"],
    vocabulary: Vocabulary,
    rng: Random,
    replace_prob: float,
    random_prob: float,
) -> Masked:
    """At valid positions: [MASK] with `replace_prob`, a uniform ordinary token with `random_prob`, else unchanged."""
    rows, slots = positions.shape
    kind = rng.uniform(rows, slots)
    drawn = (rng.uniform(rows, slots) * len(vocabulary.ordinary_ids)).long()
    originals = tokens.gather(1, positions)
    seen = torch.where(kind < replace_prob + random_prob, vocabulary.ordinary_ids[drawn], originals)
    seen = torch.where(kind < replace_prob, vocabulary.mask_id, seen)
    inputs = tokens.scatter(1, positions, torch.where(valid, seen, originals))
    return Masked(inputs, positions, valid)
