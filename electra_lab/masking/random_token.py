"""Masking as in BERT."""

from typing import Annotated

from jaxtyping import Bool, Int
from pydantic import Field
from torch import Tensor

from electra_lab.masking.replace_prob import corrupt, uniform_positions
from registry import Masked, Random, Vocabulary, masking_strategies


@masking_strategies.register("random_token")
def random_token(
    tokens: Int[Tensor, "B T"],
    maskable: Bool[Tensor, "B T"],
    vocabulary: Vocabulary,
    rng: Random,
    /,
    *,
    mask_prob: Annotated[float, Field(gt=0, le=1)] = 0.15,
    replace_prob: Annotated[float, Field(ge=0, le=1)] = 0.8,
    random_prob: Annotated[float, Field(ge=0, le=1)] = 0.1,
) -> Masked:
    """Uniform positions; 80% become [MASK], 10% a random token, 10% stay (Devlin et al. 2019, section 3.1)."""
    positions, valid = uniform_positions(maskable, mask_prob, rng)
    return corrupt(tokens, positions, valid, vocabulary, rng, replace_prob, random_prob)
