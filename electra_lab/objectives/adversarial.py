"""A generator that learns to mislead the discriminator."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.objectives._shared import Corrupting, Weight, detect, must_learn, term, widened
from registry import Batch, Losses, Setup, Streams, objectives


@objectives.register("adversarial", initialized_by_lab=True)
class Adversarial(Corrupting):
    """The generator maximises the discriminator's loss, by REINFORCE (Clark et al. 2020, section 3.2 and appendix F).

    The discriminator learns as in `electra`. The reward of a sampled token is the discriminator's loss at its position,
    under the paper's assumption that it does not depend on the other samples. A learned baseline -log sigmoid(w h), on
    the generator's states h, is subtracted; it is fitted by cross-entropy to exp(-reward), and does not change h. The
    sampler must draw from the generator's softmax (such as `temperature` at 1), or the gradient is biased. The
    generator's masked language modelling is measured, not trained.

    baseline_weight  weight of the baseline's loss
    entropy_weight   weight of a bonus for the entropy of the generator's prediction, which adversarial training lowers
    """

    trains_generator = ("policy", "entropy")

    generator_weight: Weight = 1.0
    discriminator_weight: Weight = 50.0
    baseline_weight: Weight = 1.0
    entropy_weight: Weight = 0.0

    def __post_init__(self) -> None:
        self.baseline = nn.Linear(self.generator.dim, 1, bias=False)

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        # 1) Replace the masked tokens, and let the discriminator find them.
        guess = self.guess(batch, rng)
        inputs, masked = self.replace(guess, batch, rng), guess.masked
        detection, losses = detect(self.discriminator, inputs, batch)

        # 2) The log-probability of each draw, [B K]. Special tokens are no actions; drawing the original itself is one.
        allowed = guess.logits.masked_fill(self.vocabulary.is_special, float("-inf"))
        log_probabilities = allowed.log_softmax(-1)
        sampled = inputs.gather(1, masked.positions)
        log_probability = log_probabilities.gather(-1, sampled.unsqueeze(-1)).squeeze(-1)
        entropy = -(log_probabilities.exp() * log_probabilities.masked_fill(self.vocabulary.is_special, 0.0)).sum(-1)

        # 3) Its reward, and the baseline -log sigmoid(value) that the generator's states predict, [B K].
        reward = losses.detach().gather(1, masked.positions)
        states = guess.hidden.detach().gather(1, masked.positions.unsqueeze(-1).expand(-1, -1, guess.hidden.shape[-1]))
        value = widened(self.baseline(states)).squeeze(-1)
        fit = F.binary_cross_entropy_with_logits(value, (-reward).exp(), reduction="none")
        advantage = reward + F.logsigmoid(value.detach())
        terms = {
            "policy": term(-advantage * log_probability, masked.valid, self.generator_weight),
            "entropy": term(-entropy, masked.valid, self.entropy_weight),
            "baseline": term(fit, masked.valid, self.baseline_weight),
            "discriminator": term(losses, batch.attention_mask, self.discriminator_weight),
        }
        if self.training:
            return Losses(terms)
        return Losses(terms, {"generator": guess.prediction(self.vocabulary)}, detection)

    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Int[Tensor, ""]]:
        """Return the number of masked tokens; for the discriminator, of the tokens that are not padding."""
        masked = self.mask(batch, rng).valid.sum()
        return {"policy": masked, "entropy": masked, "baseline": masked, "discriminator": batch.attention_mask.sum()}

    @classmethod
    def conflicts(cls, setup: Setup, options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        yield from must_learn("adversarial", setup)
        if setup.unbiased is False:
            yield "sampler", "adversarial needs draws from the generator's softmax. Use {type: temperature}."
