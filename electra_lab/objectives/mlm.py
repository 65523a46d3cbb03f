"""Masked language modelling: BERT's objective, the baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from torch import nn

from electra_lab.objectives._shared import cloze, mask, term
from registry import Batch, Losses, Masked, Needs, Vocabulary, objectives

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from registry.contracts import Network, Streams


@objectives.register("mlm")
class MaskedLanguageModelling(nn.Module):
    """Masked language modelling (Devlin et al. 2019) with one network, the one under `discriminator`.

    The loss is averaged over the masked tokens of the global batch. There is no generator and nothing is drawn. BERT
    itself is `masking: {mask_prob: 0.15, replace_prob: 0.8, random_prob: 0.1}`.

    smoothing  label smoothing
    """

    needs = Needs(generator=False, head="tokens", sampler=False)

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
        """The masked tokens."""
        return {"discriminator": mask(self.masking, batch, self.vocabulary, rng).valid.sum()}
