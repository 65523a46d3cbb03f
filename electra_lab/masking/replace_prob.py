"""Masking as in google-research/electra."""

from typing import Annotated

from jaxtyping import Bool, Int
from pydantic import Field
from torch import Tensor

from electra_lab.masking._uniform import corrupt, uniform_positions
from registry import Masked, Random, Vocabulary, masking_strategies


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
