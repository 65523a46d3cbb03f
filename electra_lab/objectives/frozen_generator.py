"""A discriminator for the generator of an earlier run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field
from torch import nn

from electra_lab.objectives._shared import cloze, detect, mask, replace, term
from registry import Batch, Detection, Losses, Masked, Needs, Vocabulary, objectives

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from registry.contracts import Network, Streams


@objectives.register("frozen_generator")
class FrozenGenerator(nn.Module):
    """Replaced token detection with a generator that was trained before and does not learn any more.

    As in Fast-ELECTRA (Dong et al. 2023), but for its temperature schedule. The generator is in eval mode and shares
    nothing: embedding.tie is `none`.

    run               the run directory whose newest checkpoint has the generator: that of its generator, or of an `mlm`
                      run the network under study. Corpus, tokenizer and the section `generator` must be that run's
    disallow_correct  the generator's samples never equal the original
    """

    needs = Needs(learning=True, untied=True, frozen="run")

    def __init__(
        self,
        generator: Network,
        discriminator: Network,
        masking: Callable[..., Masked],
        sampler: Callable[..., Tensor],
        vocabulary: Vocabulary,
        /,
        *,
        run: Path,
        discriminator_weight: Annotated[float, Field(ge=0)] = 50.0,
        disallow_correct: bool = False,
    ) -> None:
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        self.masking, self.sampler, self.vocabulary = masking, sampler, vocabulary
        self.discriminator_weight, self.disallow_correct = discriminator_weight, disallow_correct

    def train(self, mode: bool = True) -> FrozenGenerator:
        super().train(mode)
        self.generator.eval()  # type: ignore[attr-defined]  # a module by contract
        return self

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        with torch.no_grad():
            guess = cloze(self.generator, mask(self.masking, batch, self.vocabulary, rng), batch)
        inputs = replace(guess, batch, self.sampler, self.vocabulary, rng, self.disallow_correct)
        logits, losses = detect(self.discriminator, inputs, batch)
        terms = {"discriminator": term(losses, batch.mask, self.discriminator_weight)}
        if self.training:
            return Losses(terms)
        predictions = {"generator": guess.prediction(self.vocabulary)}
        return Losses(terms, predictions, Detection(inputs, inputs != batch.tokens, logits))

    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Int[Tensor, ""]]:
        """The tokens that are not padding."""
        return {"discriminator": batch.mask.sum()}
