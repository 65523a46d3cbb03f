"""Masked language modelling: BERT's objective, the baseline."""

from collections.abc import Callable, Mapping
from typing import Annotated

from jaxtyping import Int
from pydantic import Field
from torch import Tensor, nn

from electra_lab.objectives._shared import cloze, mask, term
from registry import Batch, Losses, Masked, Needs, Network, Streams, Vocabulary, objectives


@objectives.register("mlm")
class MaskedLanguageModelling(nn.Module):
    """Masked language modelling (Devlin et al. 2019) with one network, the one under `discriminator`.

    The loss is averaged over the masked tokens of the global batch. There is no generator and nothing is sampled. BERT
    itself uses `masking: {mask_prob: 0.15, replace_prob: 0.8, random_prob: 0.1}`.

    smoothing  label smoothing
    """

    needs = Needs(generator=False, sampler=False, heads=("tokens",))

    def __init__(
        self,
        generator: None,
        discriminator: Network,
        masking: Callable[..., Masked],
        sampler: None,
        vocabulary: Vocabulary,
        /,
        *,
        smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    ) -> None:
        super().__init__()
        self.discriminator, self.masking, self.vocabulary = discriminator, masking, vocabulary
        self.smoothing = smoothing

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        guess = cloze(self.discriminator, mask(self.masking, batch, self.vocabulary, rng), batch)
        terms = {"discriminator": term(guess.losses(self.smoothing), guess.masked.valid, 1.0)}
        if self.training:
            return Losses(terms)
        return Losses(terms, {"discriminator": guess.prediction(self.vocabulary)})

    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Int[Tensor, ""]]:
        """Return the number of masked tokens."""
        return {"discriminator": mask(self.masking, batch, self.vocabulary, rng).valid.sum()}
