"""Masked language modelling on a generator's samples instead of [MASK]."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from torch import nn

from electra_lab.objectives._shared import cloze, full_precision, mask, prediction, replace, slot_losses, term
from registry import Batch, Losses, Masked, Needs, Vocabulary, objectives

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from registry.contracts import Network, Streams


@objectives.register("replace_mlm")
class ReplaceMlm(nn.Module):
    """Predict the originals of the masked tokens from text in which a generator has replaced them.

    "Replace MLM" of Clark et al. (2020, section 3.5): what its gain over `mlm` shows is the cost of a [MASK] that
    fine-tuning never sees. The generator learns by masked language modelling beside it.

    disallow_correct  the generator's samples never equal the original
    """

    needs = Needs(head="tokens")

    def __init__(
        self,
        generator: Network,
        discriminator: Network,
        masking: Callable[..., Masked],
        sampler: Callable[..., Tensor],
        vocabulary: Vocabulary,
        /,
        *,
        generator_weight: Annotated[float, Field(ge=0)] = 1.0,
        discriminator_weight: Annotated[float, Field(ge=0)] = 1.0,
        disallow_correct: bool = False,
    ) -> None:
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        self.masking, self.sampler, self.vocabulary = masking, sampler, vocabulary
        self.generator_weight, self.discriminator_weight = generator_weight, discriminator_weight
        self.disallow_correct = disallow_correct

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        masked = mask(self.masking, batch, self.vocabulary, rng)
        guess = cloze(self.generator, masked, batch)
        inputs = replace(guess, batch, self.sampler, self.vocabulary, rng, self.disallow_correct)
        hidden = self.discriminator.hidden(inputs, batch.mask, batch.segments)
        logits = full_precision(self.discriminator.token_logits(hidden, masked.positions))
        terms = {
            "generator": term(guess.losses(), masked.valid, self.generator_weight),
            "discriminator": term(slot_losses(logits, guess.originals), masked.valid, self.discriminator_weight),
        }
        if self.training:
            return Losses(terms)
        shown = Masked(inputs, masked.positions, masked.valid)
        second = prediction(shown, guess.originals, logits, self.vocabulary)
        return Losses(terms, {"generator": guess.prediction(self.vocabulary), "discriminator": second})

    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Int[Tensor, ""]]:
        """The masked tokens, for both networks."""
        number = mask(self.masking, batch, self.vocabulary, rng).valid.sum()
        return {"generator": number, "discriminator": number}
