"""Masked language modelling on a generator's samples instead of [MASK]."""

from collections.abc import Callable, Mapping
from typing import Annotated

from jaxtyping import Int
from pydantic import Field
from torch import Tensor

from electra_lab.objectives._shared import Corrupting, cloze, term
from registry import Batch, Losses, Masked, Needs, Network, Streams, Vocabulary, objectives


@objectives.register("replace_mlm")
class ReplaceMlm(Corrupting):
    """Predict the originals of the masked tokens from text in which a generator has replaced them.

    "Replace MLM" of Clark et al. (2020, section 3.5): its gain over `mlm` is the cost of a [MASK] that fine-tuning
    never sees. The generator learns by masked language modelling beside it.

    disallow_correct  the generator's samples never equal the original
    """

    needs = Needs(heads=("tokens",))

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
        super().__init__(generator, discriminator, masking, sampler, vocabulary)
        self.generator_weight, self.discriminator_weight = generator_weight, discriminator_weight
        self.disallow_correct = disallow_correct

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        guess = self.guess(batch, rng)
        inputs, masked = self.replace(guess, batch, rng), guess.masked
        second = cloze(self.discriminator, Masked(inputs, masked.positions, masked.valid), batch)
        terms = {
            "generator": term(guess.losses(), masked.valid, self.generator_weight),
            "discriminator": term(second.losses(), masked.valid, self.discriminator_weight),
        }
        if self.training:
            return Losses(terms)
        guesses = {"generator": guess, "discriminator": second}
        return Losses(terms, {name: each.prediction(self.vocabulary) for name, each in guesses.items()})

    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Int[Tensor, ""]]:
        """Return the number of masked tokens, for both networks."""
        number = self.mask(batch, rng).valid.sum()
        return {"generator": number, "discriminator": number}
