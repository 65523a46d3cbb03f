"""MC-BERT: a generator proposes candidates for every token, a discriminator chooses the original or none of them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Int
from pydantic import Field
from torch import Tensor

from electra_lab.model.draws import inverse_cdf
from electra_lab.model.network import everywhere
from electra_lab.objectives._shared import Corrupting, MaskedPrediction, Weight, ZLoss, choose, states, term, widened
from registry import Batch, Detection, Flops, Losses, Needs, Price, Streams, objectives

AT_ONCE = 512  # positions of a batch whose vocabulary logits exist at the same time


@objectives.register("mc_bert")
class McBert(Corrupting):
    """Choose the original of every token out of k options (Xu et al. 2020, "MC-BERT", and the authors' code).

    The options of a token are "none of them" and k - 1 tokens, drawn with replacement from the generator's softmax at
    its position, without a gradient. Where the token has been replaced, its original takes the place of the first draw
    and is the answer; elsewhere the answer is "none of them", even if the original is among the draws.
    The loss is generator_weight * MLM + choice_weight * cross-entropy of the choice: MLM is averaged over the masked
    tokens, the choice over all tokens that are not padding. The replacements are the sampler's.

    k           number of options, "none of them" included
    duplicates  keep: other draws may be the original of a replaced token, too, and count as wrong, as in the authors'
                code; redraw: for a replaced token they are drawn from the softmax without its original
    z_loss      weight of the mean squared log-normalizer of the generator's softmax, such as 1e-4
    """

    detection_term = None  # the cross-entropy of the choice teaches detection, too

    generator_weight: Weight = 1.0
    choice_weight: Weight = 50.0
    k: Annotated[int, Field(ge=2, le=65_536)] = 10
    duplicates: Literal["keep", "redraw"] = "keep"
    z_loss: ZLoss = None

    @staticmethod
    def needs(options: Mapping[str, Any]) -> Needs:
        return Needs(heads={"candidates": {"k": options["k"] - 1, "everywhere": True, "reject": True}})

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        # 1) Mask, let the generator predict, and replace the masked tokens by its samples.
        guess = self.guess(batch, rng)
        inputs = self.replace(guess, batch, rng)
        replaced = inputs != batch.tokens

        # 2) Draw the candidates of every position; the original comes first where it was replaced: [B T k - 1].
        drawn = self._draws(guess, batch, replaced, rng)
        first = torch.where(replaced, batch.tokens, drawn[..., 0])
        candidates = torch.cat([first.unsqueeze(-1), drawn[..., 1:]], dim=-1)

        terms = {"generator": guess.term(self.generator_weight), **guess.z_term("generator", self.z_loss)}
        predictions = {} if self.training else {"generator": guess.prediction(self.vocabulary)}
        del guess  # the logits, which no backward reads, need not wait for the discriminator

        # 3) Let the discriminator choose: the first candidate where the token was replaced, none of them elsewhere.
        hidden = states(self.discriminator, inputs, batch)
        choice, losses = choose(
            self.discriminator, hidden, everywhere(hidden), batch.attention_mask, candidates, replaced.long()
        )
        terms["choice"] = term(losses, batch.attention_mask, self.choice_weight)
        if self.training:
            return Losses(terms)
        suspicion = choice.logits[..., 1:].logsumexp(-1) - choice.logits[..., 0]  # log odds of "any of them"
        return Losses(terms, predictions, Detection(inputs, replaced, suspicion), choice=choice)

    @torch.no_grad()
    def _draws(self, guess: MaskedPrediction, batch: Batch, replaced: Tensor, rng: Streams) -> Int[Tensor, "B T draws"]:
        """Draw k - 1 tokens at every position, in float32, never a special token."""
        rows, length = batch.tokens.shape
        numbers = rng("candidates").uniform(rows * length, self.k - 1).view(rows, length, self.k - 1)
        some = max(1, AT_ONCE // max(rows, 1))  # vocabulary logits of all positions would need too much memory
        parts = (torch.split(tensor, some, dim=1) for tensor in (everywhere(numbers), numbers, batch.tokens, replaced))
        drawn = []
        for at, uniform, originals, replaced_part in zip(*parts, strict=True):
            logits = widened(self.generator.token_logits(guess.hidden, at))
            logits = logits.masked_fill(self.vocabulary.is_special, float("-inf"))
            if self.duplicates == "redraw":
                original = originals.unsqueeze(-1)
                original_logits = logits.gather(-1, original).masked_fill(replaced_part.unsqueeze(-1), float("-inf"))
                logits = logits.scatter(-1, original, original_logits)
            with torch.autocast(logits.device.type, enabled=False):
                weights = logits.softmax(-1)
                drawn.append(inverse_cdf(weights.flatten(0, 1), uniform.flatten(0, 1)).view(uniform.shape))
        return torch.cat(drawn, dim=1)

    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Int[Tensor, ""]]:
        counts = dict(super().counts(batch, rng))
        return counts | {"choice": counts.pop("discriminator")}

    def flops(self, price: Price) -> Flops:
        """The candidates are drawn from logits at all positions, besides those that learn. They have no backward."""
        draws = price("generator", learns=False, everywhere=True) - price("generator", learns=False, heads=())
        return Flops(price("generator") + draws + price("discriminator"))
