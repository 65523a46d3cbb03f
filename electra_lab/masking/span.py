"""Masking spans of neighbouring words."""

import math
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float32, Int
from pydantic import Field
from torch import Tensor

from electra_lab.masking._words import as_slots, random_order, word_starts
from electra_lab.masking.replace_prob import corrupt
from registry import Masked, Random, Vocabulary, count, masking_strategies


@masking_strategies.register("span")
def span(
    tokens: Int[Tensor, "B T"],
    maskable: Bool[Tensor, "B T"],
    vocabulary: Vocabulary,
    rng: Random,
    /,
    *,
    mask_prob: Annotated[float, Field(gt=0, le=1)] = 0.15,
    replace_prob: Annotated[float, Field(ge=0, le=1)] = 0.85,
    random_prob: Annotated[float, Field(ge=0, le=1)] = 0.0,
    length: Literal["geometric", "uniform"] = "geometric",
    longest: Annotated[int, Field(ge=1, le=10**9)] = 10,
    stop_prob: Annotated[float, Field(gt=0, le=1)] = 0.2,
) -> Masked:
    """Mask spans of whole words at random places until the count is reached; the last span is cut to fit.

    length     of a span in words: `geometric` (SpanBERT, Joshi et al. 2020: P(n) falls by 1 - stop_prob a word, cut at
               `longest`) or `uniform` from 1 to `longest` (n-gram masking)
    longest    words
    stop_prob  of the geometric distribution; SpanBERT's 0.2 gives 3.8 words on average

    A span ends at special tokens, at padding, and at tokens that are already masked.
    """
    width = tokens.shape[1]
    starts = word_starts(tokens, maskable, vocabulary)
    order = random_order(starts, rng)
    words = _lengths(rng.uniform(*tokens.shape), length, longest, stop_prob)
    most = count(mask_prob, maskable.sum(-1))
    begun = starts.cumsum(-1)  # the number of the word that a token belongs to
    chosen = torch.zeros_like(maskable)
    for place in range(width):
        start = order[:, place : place + 1]
        first = begun.gather(1, start)
        inside = (begun >= first) & (begun < first + words[:, place : place + 1])
        room = (most - chosen.sum(-1)).unsqueeze(-1)
        fresh = inside & maskable & ~chosen & starts.gather(1, start) & ~chosen.gather(1, start)
        fresh = fresh & (_run(fresh, start) <= room)
        chosen = chosen | fresh
    positions, valid = as_slots(chosen, order, maskable, mask_prob)
    return corrupt(tokens, positions, valid, vocabulary, rng, replace_prob, random_prob)


def _run(fresh: Bool[Tensor, "B T"], start: Int[Tensor, "B 1"]) -> Int[Tensor, "B T"]:
    """Number the tokens of the run that begins at `start`, from 1; tokens beyond a gap get a number above any room."""
    places = torch.arange(fresh.shape[1], device=fresh.device)
    gaps = (~fresh & (places >= start)).cumsum(-1)
    return (places - start + 1).masked_fill((gaps > 0) | (places < start), fresh.shape[1] + 1)


def _lengths(uniform: Float32[Tensor, "B T"], kind: str, longest: int, stop_prob: float) -> Int[Tensor, "B T"]:
    """Turn uniform numbers into lengths of spans in words."""
    if kind == "uniform" or stop_prob == 1:
        return (uniform * (longest if kind == "uniform" else 1)).long() + 1
    # The geometric distribution given that it is at most `longest`, by its inverse.
    within = 1 - (1 - stop_prob) ** longest
    return ((1 - uniform * within).log() / math.log(1 - stop_prob)).floor().long().clamp(0, longest - 1) + 1
