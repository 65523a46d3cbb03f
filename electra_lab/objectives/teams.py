"""TEAMS: a discriminator detects replaced tokens, and chooses the originals of masked ones among candidates."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Int
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from electra_lab.model.draws import distinct
from electra_lab.objectives._shared import Corrupting, MaskedPrediction, Weight, ZLoss, choose, term, widened
from registry import Batch, Detection, Losses, Needs, Streams, objectives


@objectives.register("teams")
class Teams(Corrupting):
    """Replaced token detection, and a choice at masked positions (Shen et al. 2021, "TEAMS", and tensorflow/models).

    The loss is generator_weight * MLM + discriminator_weight * detection + choice_weight * cross-entropy of the choice:
    MLM and choice are averaged over the masked tokens, detection over all that are not padding. The candidates of a
    masked token are its original and k - 1 other tokens, drawn from the generator's softmax one after another, each
    from those that are left, without a gradient. Detection branches off some layers below the top of the discriminator,
    into layers that nothing else reads; the choice is made at the top.

    k          candidates, the original included
    below_top  layers of the discriminator above the branch, and of the branch
    branch     as_meant: a stack of `below_top` layers; as_released: the authors' code lets each of them read the
               discriminator's states and keeps the last one's, so that only one counts, which is all that is built.
               With below_top 1, the default of the authors, both are the same
    z_loss     weight of the mean squared log-normalizer of the generator's softmax, such as 1e-4
    """

    generator_weight: Weight = 1.0
    discriminator_weight: Weight = 5.0
    choice_weight: Weight = 2.0
    k: Annotated[int, Field(ge=2, le=65_536)] = 5
    below_top: Annotated[int, Field(ge=1, le=1000)] = 1
    branch: Literal["as_meant", "as_released"] = "as_meant"
    z_loss: ZLoss = None

    def __post_init__(self) -> None:
        model: Any = self.discriminator
        if not model.inner_states:
            raise ValueError("its discriminator must return states of inner layers. Use type: bert, or transformer.")
        if self.below_top >= model.depth:
            raise ValueError(f"below_top must be less than {model.depth}, the number of the discriminator's layers.")

    @staticmethod
    def needs(options: Mapping[str, Any]) -> Needs:
        depth = options["below_top"] if options["branch"] == "as_meant" else 1
        candidates = {"k": options["k"], "bias": False}
        return Needs(heads={"replaced_branch": {"depth": depth}, "candidates": candidates})

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        # 1) Mask, let the generator predict, and replace the masked tokens by its samples.
        guess = self.guess(batch, rng)
        masked = guess.masked
        inputs = self.replace(guess, batch, rng)

        # 2) The candidates of each masked token, its original first: [B K k].
        candidates = torch.cat([guess.originals.unsqueeze(-1), self._draws(guess, rng)], dim=-1)

        terms = {"generator": guess.term(self.generator_weight), **guess.z_term("generator", self.z_loss)}
        predictions = {} if self.training else {"generator": guess.prediction(self.vocabulary)}
        del guess  # the logits, which no backward reads, need not wait for the discriminator

        # 3) Detection in the branch, the choice at the top.
        model: Any = self.discriminator
        depths = model.depth - self.below_top, model.depth
        mask, documents = batch.attention_mask, batch.attention_document_ids
        inner, top = model.hidden_at(depths, inputs, mask, batch.segments, documents)
        logits = widened(model.predict("replaced_branch", inner, mask, documents))
        detection = Detection(inputs, inputs != batch.tokens, logits)
        detected = F.binary_cross_entropy_with_logits(logits, detection.replaced.to(logits.dtype), reduction="none")
        answer = torch.zeros_like(masked.positions)
        choice, losses = choose(model, top, masked.positions, masked.valid, candidates, answer)

        terms["discriminator"] = term(detected, self.judged(batch, masked), self.discriminator_weight)
        terms["choice"] = term(losses, masked.valid, self.choice_weight)
        return Losses(terms) if self.training else Losses(terms, predictions, detection, choice=choice)

    @torch.no_grad()
    def _draws(self, guess: MaskedPrediction, rng: Streams) -> Int[Tensor, "B K draws"]:
        """Draw k - 1 distinct tokens for each masked one, in float32, never its original or a special token."""
        rows, slots = guess.originals.shape
        numbers = rng("candidates").uniform(rows * slots, self.k - 1)
        logits = guess.logits.float().masked_fill(self.vocabulary.is_special, float("-inf"))
        logits = logits.scatter(-1, guess.originals.unsqueeze(-1), float("-inf"))
        with torch.autocast(logits.device.type, enabled=False):
            return distinct(logits.flatten(0, 1), numbers).view(rows, slots, self.k - 1)

    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Int[Tensor, ""]]:
        counts = dict(super().counts(batch, rng))
        return counts | {"choice": counts["generator"]}
