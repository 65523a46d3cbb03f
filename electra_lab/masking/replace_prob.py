"""Masking as in google-research/electra."""

from typing import Annotated

import torch
from jaxtyping import Bool, Float64, Int
from pydantic import Field
from torch import Tensor

from registry import Masked, Random, Vocabulary, count, masking_strategies


def slots_of(mask_prob: float | Tensor, length: int) -> int:
    """Return K, the number of slots in a row of `length` positions; `length` itself if mask_prob is a tensor.

    A mask_prob that changes must not change shapes. The lab knows its largest value, and cuts.
    """
    return length if isinstance(mask_prob, Tensor) else count(mask_prob, length)


def random_keys(maskable: Bool[Tensor, "B T"], rng: Random) -> Float64[Tensor, "B T"]:
    """Return numbers in (0, 1) to order positions by.

    Doubles hold the 23 random bits and the position: no two keys are equal, so devices cannot break ties differently.
    """
    rows, length = maskable.shape
    return rng.uniform(rows, length).double() + torch.arange(length, device=maskable.device) * 2.0**-40


def uniform_positions(
    maskable: Bool[Tensor, "B T"], mask_prob: float | Tensor, rng: Random
) -> tuple[Int[Tensor, "B K"], Bool[Tensor, "B K"]]:
    """Choose exactly count(mask_prob, m) of each row's m maskable positions, every subset equally likely.

    K is the same for all rows; `valid` marks the slots that count, which come first.
    """
    slots = slots_of(mask_prob, maskable.shape[1])
    positions = random_keys(maskable, rng).masked_fill(~maskable, -1.0).topk(slots, dim=-1).indices
    valid = torch.arange(slots, device=maskable.device) < count(mask_prob, maskable.sum(-1)).unsqueeze(-1)
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
    """Put [MASK] at valid positions with `replace_prob`, a uniform ordinary token with `random_prob`."""
    rows, slots = positions.shape
    kind = rng.uniform(rows, slots)
    drawn = (rng.uniform(rows, slots) * len(vocabulary.ordinary_ids)).long()
    originals = tokens.gather(1, positions)
    seen = torch.where(kind < replace_prob + random_prob, vocabulary.ordinary_ids[drawn], originals)
    seen = torch.where(kind < replace_prob, vocabulary.mask_id, seen)
    inputs = tokens.scatter(1, positions, torch.where(valid, seen, originals))
    return Masked(inputs, positions, valid)


@masking_strategies.register("replace_prob")
def replace_prob(
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
    """Uniform positions; 85% become [MASK], 15% stay (google-research/electra, with distinct positions).

    The official code draws positions with replacement, so that 13.8% instead of 15% of 128 positions are predicted,
    some of them with double weight; here every position is drawn at most once."""
    positions, valid = uniform_positions(maskable, mask_prob, rng)
    return corrupt(tokens, positions, valid, vocabulary, rng, replace_prob, random_prob)
