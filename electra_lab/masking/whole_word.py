"""Masking whole words."""

from typing import Annotated

import torch
from jaxtyping import Bool, Int
from pydantic import Field
from torch import Tensor

from electra_lab.masking._words import as_slots, random_order, word_starts
from electra_lab.masking.replace_prob import corrupt
from registry import Masked, Random, Vocabulary, count, masking_strategies


@masking_strategies.register("whole_word")
def whole_word(
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
    """Mask whole words in random order, each with all its tokens (BERT's whole word masking).

    A word that would exceed the count of masked tokens is skipped, so a row may have fewer; if no word fits, one token
    is masked. Words begin where the tokenizer marks them.
    """
    length = tokens.shape[1]
    starts = word_starts(tokens, maskable, vocabulary)
    # The word of each token by the position of its first one; sizes stand there too.
    places = torch.arange(length, device=tokens.device).expand_as(tokens)
    word = places.masked_fill(~starts, 0).cummax(-1).values
    sizes = torch.zeros_like(tokens).scatter_add(1, word, maskable.long())
    order = random_order(starts, rng)
    sizes, candidates = sizes.gather(1, order), starts.gather(1, order)

    # Taking words while they fit is sequential by nature; all rows go at once.
    most = count(mask_prob, maskable.sum(-1))
    total, taken = torch.zeros_like(most), []
    for place in range(length):
        fits = candidates[:, place] & (total + sizes[:, place] <= most)
        total = total + sizes[:, place] * fits
        taken.append(fits)
    of_word = torch.zeros_like(maskable).scatter(1, order, torch.stack(taken, 1))
    positions, valid = as_slots(of_word.gather(1, word) & maskable, order, maskable, mask_prob)
    return corrupt(tokens, positions, valid, vocabulary, rng, replace_prob, random_prob)
