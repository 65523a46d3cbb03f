"""Masking strategies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, overload

from registry.contracts.data import Random, Vocabulary

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64, Int
    from torch import Tensor


@overload
def count(mask_prob: float, tokens: int) -> int: ...
@overload
def count(mask_prob: float | Float64[Tensor, ""], tokens: Int[Tensor, " B"]) -> Int[Tensor, " B"]: ...
def count(mask_prob: float | Tensor, tokens: int | Tensor) -> int | Tensor:
    """Return how many of `tokens` maskable tokens are masked: ceil(mask_prob * tokens), with rounding errors forgiven.

    Computed in doubles: without the 1e-9, or in float32, ceil(0.15 * 100) would be 16.
    """
    if isinstance(tokens, int):
        return math.ceil(mask_prob * tokens - 1e-9)
    return (tokens.double() * mask_prob - 1e-9).ceil().long()


@dataclass(frozen=True)
class Masked:
    """The choice of a masking strategy."""

    inputs: Int[Tensor, "B T"]  # for the generator
    positions: Int[Tensor, "B K"]  # of the predicted tokens, distinct within a row where valid
    valid: Bool[Tensor, "B K"]  # the slots that count


class MaskingStrategy(Protocol):
    """Choose the tokens that the generator has to predict, and what it sees in their place.

    Registered as a function with at least the options mask_prob, replace_prob and random_prob. Every row has
    K = count(mask_prob, T) slots. A mask_prob that follows a schedule arrives as a Float64[""], so that compiled code
    is not compiled again; any number of slots up to T will do then, those that count first.
    """

    def __call__(
        self,
        tokens: Int[Tensor, "B T"],
        maskable: Bool[Tensor, "B T"],
        vocabulary: Vocabulary,
        rng: Random,
        /,
        *args: Any,
        **options: Any,
    ) -> Masked: ...
