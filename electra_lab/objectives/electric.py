"""Noise-contrastive estimation of the probability of every token in its context."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from electra_lab.objectives._shared import Base, Weight, draw, in_parts, is_masked, states, term, widened
from registry import Batch, Detection, Flops, Losses, Metric, Needs, Prediction, Price, Setup, Streams, objectives


@objectives.register("electric", initialized_by_lab=True)
class Electric(Base):
    """Noise-contrastive estimation: the discriminator learns the energy of every token in its context.

    Electric (Clark et al. 2020, "Pre-Training Transformers as Energy-Based Cloze Models"). The generator reads the text
    without masks and gives q, the probability of each token given the others, so it must not see the token that it
    predicts: `unigram`, or the backbone `two_towers`. It learns by cross-entropy over all tokens but special ones.
    Draws from q replace the masked tokens. The discriminator gives each token an energy f, and learns by the binary
    cross-entropy of f + log q + log(k / (n - k)) with the label "was masked", draws that equal the original included,
    where k of the row's n tokens are masked, special ones aside. At the minimum f is -log p(token | context) itself,
    constant included.
    """

    needs = Needs(heads=("energy",))
    detection_labels = "masked"
    metrics = {  # noqa: RUF012
        "discriminator_energy": Metric(
            "mean energy of the tokens that were not masked, an estimate of their negative log-probability",
            "energy of the text", "nats", False, baselines=("unigram_entropy",), chart=True,
        ),
    }  # fmt: skip

    generator_weight: Weight = 1.0
    discriminator_weight: Weight = 50.0

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        """Return both terms; in eval mode also the input of metrics."""
        # 1) The log-probability of every token given the others. It is minus infinity for special tokens.
        maskable, masked = self.maskable(batch), self.mask(batch, rng)
        hidden = states(self.generator, batch.tokens, batch)
        log_probability = self.token_log_probability(hidden, batch.tokens)

        # 2) Replace the masked tokens by draws, and note how probable these were. No gradient passes either.
        at, originals = masked.positions, batch.tokens.gather(1, masked.positions)
        with torch.no_grad():
            logits = self.allowed(hidden, at)
            drawn = draw(self.sampler, logits, self.vocabulary, rng("sampling"))
            drawn = torch.where(masked.valid, drawn, originals)
            inputs = batch.tokens.scatter(1, at, drawn)
            of_drawn = logits.log_softmax(-1).gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
            noise = log_probability.scatter(1, at, of_drawn)

        # 3) Let the discriminator tell noise from text, by an energy that has to make up for the noise's probability.
        energy = widened(self.discriminator.predict("energy", states(self.discriminator, inputs, batch)))
        replacements = masked.valid.sum(1, keepdim=True)
        unmasked = maskable.sum(1, keepdim=True) - replacements
        log_odds = replacements.clamp(min=1).to(energy.dtype).log() - unmasked.clamp(min=1).to(energy.dtype).log()
        seen = energy + noise.masked_fill(~maskable, 0.0) + log_odds
        labels = is_masked(masked)
        losses = F.binary_cross_entropy_with_logits(seen, labels.to(seen.dtype), reduction="none")

        terms = {
            "generator": term(-log_probability, maskable, self.generator_weight),
            "discriminator": term(losses, maskable, self.discriminator_weight),
        }
        if self.training:
            return Losses(terms)
        correct = logits.argmax(-1) == originals
        guess = Prediction(at, masked.valid, masked.valid, -log_probability.gather(1, at), correct)
        detection = Detection(inputs, inputs != batch.tokens, seen)
        measured = {"discriminator_energy": term(energy, maskable & ~labels, 1.0)}
        return Losses(terms, {"generator": guess}, detection, metrics=measured)

    def token_log_probability(self, hidden: Float[Tensor, "B T D"], tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """Return the log-probability of a token at each position, over those that may be drawn."""
        table = getattr(self.generator, "token_log_probability", None)  # of a generator that needs no logits
        if table:
            of_tokens: Tensor = table(hidden, tokens)
            return of_tokens
        [losses] = in_parts(self._read, hidden, tokens)
        return -losses

    def _read(
        self, at: Int[Tensor, "B n"], hidden: Float[Tensor, "B T D"], tokens: Int[Tensor, "B T"]
    ) -> tuple[Float[Tensor, "B n"]]:
        logits = self.allowed(hidden, at)
        losses = F.cross_entropy(logits.flatten(0, 1), tokens.gather(1, at).flatten(), reduction="none")
        return (losses.view_as(at),)

    def allowed(self, hidden: Float[Tensor, "B T D"], at: Int[Tensor, "B n"]) -> Float[Tensor, "B n V"]:
        """Return the generator's logits at some positions, minus infinity for tokens that are never drawn."""
        logits = widened(self.generator.token_logits(hidden, at))
        return logits.masked_fill(self.vocabulary.is_special, float("-inf"))

    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Int[Tensor, ""]]:
        """Return the number of tokens that may be masked, for both networks."""
        return dict.fromkeys(("generator", "discriminator"), self.maskable(batch).sum())

    def flops(self, price: Price) -> Flops:
        """Return the cost. The logits of draws are computed twice, and counted once."""
        return Flops(price("generator", everywhere=True) + price("discriminator"))

    @classmethod
    def conflicts(cls, setup: Setup, options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if not setup.generator_is_masked_lm:
            reason = "electric needs a generator that does not see the token that it predicts"
            yield "generator.type", f"{reason}. Use two_towers, or unigram."
        if setup.unbiased is False:
            yield "sampler", "electric needs draws from the generator's softmax. Use {type: temperature}."
