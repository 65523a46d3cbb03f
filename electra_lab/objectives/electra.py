"""ELECTRA: a generator fills in masked tokens, a discriminator finds the ones that it got wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from electra_lab.objectives._logits import draw, full_precision
from registry import Batch, Detection, Losses, Masked, Prediction, Term, Vocabulary, objectives

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from registry.contracts import Network, Streams


@objectives.register("electra")
class Electra(nn.Module):
    """Joint masked language modelling and replaced token detection (Clark et al. 2020, section 2).

    The loss is generator_weight * MLM + discriminator_weight * RTD. MLM is averaged over the masked tokens, RTD over
    all tokens that are not padding, [CLS] and [SEP] included, both over the global batch, as in
    google-research/electra. A sampled token that equals the original is labelled original.
    """

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
        discriminator_weight: Annotated[float, Field(ge=0)] = 50.0,
    ) -> None:
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        self.masking, self.sampler, self.vocabulary = masking, sampler, vocabulary
        self.generator_weight, self.discriminator_weight = generator_weight, discriminator_weight

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        """Both terms as sums and counts; in eval also what metrics need. No host sync, no data-dependent shape."""
        # 1) Mask, and let the generator predict at the masked positions alone.
        masked = self._mask(batch, rng)
        hidden = self.generator.hidden(masked.inputs, batch.mask, batch.segments)
        token_logits = full_precision(self.generator.token_logits(hidden, masked.positions))
        originals = batch.tokens.gather(1, masked.positions)
        mlm = F.cross_entropy(token_logits.flatten(0, 1), originals.flatten(), reduction="none").view_as(originals)

        # 2) Sample replacements into the original text. No gradient passes a sample.
        sampled = draw(self.sampler, token_logits, self.vocabulary, rng("sampling"))
        inputs = batch.tokens.scatter(1, masked.positions, torch.where(masked.valid, sampled, originals))
        replaced = inputs != batch.tokens

        # 3) The discriminator says which tokens were replaced.
        hidden = self.discriminator.hidden(inputs, batch.mask, batch.segments)
        replaced_logits = full_precision(self.discriminator.replaced_logits(hidden))
        labels = replaced.to(replaced_logits.dtype)
        rtd = F.binary_cross_entropy_with_logits(replaced_logits, labels, reduction="none")

        terms = {
            "generator": _term(mlm, masked.valid, self.generator_weight),
            "discriminator": _term(rtd, batch.mask, self.discriminator_weight),
        }
        if self.training:
            return Losses(terms)
        hidden_from_it = masked.inputs.gather(1, masked.positions) == self.vocabulary.mask_id
        correct = token_logits.argmax(-1) == originals
        return Losses(
            terms,
            Prediction(masked.positions, masked.valid, hidden_from_it, mlm, correct),
            Detection(inputs, replaced, replaced_logits),
        )

    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Int[Tensor, ""]]:
        """The terms' counts: masked tokens, and tokens that are not padding."""
        return {"generator": self._mask(batch, rng).valid.sum(), "discriminator": batch.mask.sum()}

    def _mask(self, batch: Batch, rng: Streams) -> Masked:
        maskable = batch.mask & ~self.vocabulary.is_special[batch.tokens]
        return self.masking(batch.tokens, maskable, self.vocabulary, rng("masking"))


def _term(losses: Float[Tensor, "B N"], counted: Bool[Tensor, "B N"], weight: float) -> Term:
    return Term(losses.masked_fill(~counted, 0.0).sum(), counted.sum(), weight)
