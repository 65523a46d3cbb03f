"""Masked language modelling on a generator's samples instead of [MASK]."""

from collections.abc import Mapping

from jaxtyping import Int
from torch import Tensor

from electra_lab.objectives._shared import Corrupting, Weight, ZLoss, predict_masked
from registry import Batch, Losses, Masked, Needs, Streams, objectives


@objectives.register("replace_mlm")
class ReplaceMlm(Corrupting):
    """Predict the originals of the masked tokens from text in which a generator has replaced them.

    "Replace MLM" of Clark et al. (2020, section 3.5): its gain over `mlm` is the cost of a [MASK] that fine-tuning
    never sees. The generator learns by masked language modelling.

    disallow_correct  True if the generator's samples never equal the original
    z_loss            weight of the mean squared log-normalizer of each network's softmax, such as 1e-4
    """

    needs = Needs(heads=("tokens",))

    generator_weight: Weight = 1.0
    discriminator_weight: Weight = 1.0
    disallow_correct: bool = False
    z_loss: ZLoss = None

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        guess = self.guess(batch, rng)
        inputs, masked = self.replace(guess, batch, rng), guess.masked
        correction = predict_masked(self.discriminator, Masked(inputs, masked.positions, masked.valid), batch)
        terms = {
            "generator": guess.term(self.generator_weight),
            **guess.z_term("generator", self.z_loss),
            "discriminator": correction.term(self.discriminator_weight),
            **correction.z_term("discriminator", self.z_loss),
        }
        if self.training:
            return Losses(terms)
        guesses = {"generator": guess, "discriminator": correction}
        return Losses(terms, {name: guess.prediction(self.vocabulary) for name, guess in guesses.items()})

    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Int[Tensor, ""]]:
        """Return the number of masked tokens, for both networks."""
        number = self.mask(batch, rng).valid.sum()
        counts = {"generator": number, "discriminator": number}
        return counts if self.z_loss is None else counts | {"generator_z": number, "discriminator_z": number}
