"""First the generator alone, then the discriminator alone."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import torch
from jaxtyping import Int
from pydantic import Field
from torch import Tensor, nn

from electra_lab.objectives._shared import Corrupting, Weight, ZLoss, detect, must_learn, must_share_nothing, term
from registry import Batch, Flops, Losses, Price, Setup, Streams, Term, objectives


@objectives.register("two_stage")
class TwoStage(Corrupting):
    """Train the generator, start the discriminator from its weights, then train it while the generator is frozen.

    The alternative of Clark et al. (2020, section 3.2) to joint training. Weights are copied wherever both networks
    have a parameter of the same name and shape; without them, the paper reports, the discriminator may learn nothing
    but the majority class. In the second stage the generator is in eval mode. It must not change then, so it may not
    share any parameter: embedding.tie must be `none`. The schedule of the learning rate runs once, over both stages.

    generator_steps   steps of the first stage
    disallow_correct  True if the generator's samples never equal the original
    z_loss            weight of the mean squared log-normalizer of the generator's softmax, such as 1e-4
    """

    generator_steps: Annotated[int, Field(gt=0, le=10**9)]
    generator_weight: Weight = 1.0
    discriminator_weight: Weight = 50.0
    disallow_correct: bool = False
    z_loss: ZLoss = None

    def at_step(self, seed: int, step: int) -> None:
        """Enter the stage that `step` belongs to; the weights are copied when the second one begins."""
        if step == self.generator_steps:
            take_over(self.discriminator, self.generator)
        self.frozen = step >= self.generator_steps  # in the second stage
        self.train(self.training)

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        """Return the loss of the current stage, and the other with a count of 0. In eval mode both are measured."""
        guess = self.guess(batch, rng)
        masked = guess.masked
        nothing = batch.tokens.new_zeros((), dtype=guess.logits.dtype), masked.valid.sum() * 0
        learned = {"generator": guess.term(self.generator_weight), **guess.z_term("generator", self.z_loss)}
        if self.training and not self.frozen:
            return Losses({**learned, "discriminator": Term(*nothing, self.discriminator_weight)})
        inputs = self.replace(guess, batch, rng)
        detection, losses = detect(self.discriminator, inputs, batch)
        detected = term(losses, batch.attention_mask, self.discriminator_weight)
        if self.training:
            absent = {name: Term(*nothing, part.weight) for name, part in learned.items()}
            return Losses({**absent, "discriminator": detected})
        terms = {**learned, "discriminator": detected}
        return Losses(terms, {"generator": guess.prediction(self.vocabulary)}, detection)

    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Int[Tensor, ""]]:
        """Return the number of masked tokens in the first stage, of real tokens in the second; 0 for the other term."""
        stage = "discriminator" if self.frozen else "generator"
        counts = super().counts(batch, rng)
        return {name: count if name.startswith(stage) else count * 0 for name, count in counts.items()}

    def flops(self, price: Price) -> Flops:
        later = price("generator", learns=False) + price("discriminator")
        return Flops(later, first=self.generator_steps, at_first=price("generator"))

    @classmethod
    def conflicts(cls, setup: Setup, options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        yield from must_learn("two_stage", setup)
        yield from must_share_nothing("two_stage", setup)
        if "discriminator" in setup.starts:
            yield "init.discriminator", "two_stage starts the discriminator from its generator. Remove this key."
        if setup.steps is not None and options["generator_steps"] >= setup.steps:
            reason = f"a first stage of {options['generator_steps']} steps leaves none of {setup.steps} for the second."
            yield "objective.generator_steps", f"{reason} Set it below {setup.steps}, or train longer."


@torch.no_grad()
def take_over(target: object, source: object) -> list[str]:
    """Copy each parameter of `source` to the one of `target` with the same name and shape; returns the names."""
    assert isinstance(target, nn.Module)
    assert isinstance(source, nn.Module)
    sources = dict(source.named_parameters())
    copied = []
    for name, parameter in target.named_parameters():
        if name in sources and sources[name].shape == parameter.shape:
            parameter.copy_(sources[name])
            copied.append(name)
    return copied
