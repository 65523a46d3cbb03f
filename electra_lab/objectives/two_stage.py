"""First the generator alone, then the discriminator alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field
from torch import nn

from electra_lab.objectives._shared import cloze, detect, mask, replace, term
from registry import Batch, Detection, Losses, Masked, Needs, Term, Vocabulary, objectives

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from registry.contracts import Network, Streams


@objectives.register("two_stage")
class TwoStage(nn.Module):
    """Train the generator, start the discriminator from its weights, train that while the generator is frozen.

    The alternative of Clark et al. (2020, section 3.2) to joint training. Weights are taken over wherever both
    networks have a parameter of the same name and shape; without them, the paper reports, the discriminator may learn
    nothing but the majority class. In the second stage the generator is in eval mode. As it must not change then, it
    may share nothing: embedding.tie is `none`. The learning rate's schedule runs once, over both stages.

    generator_steps   steps of the first stage
    disallow_correct  the generator's samples never equal the original
    """

    needs = Needs(
        generator=True, head="replaced", sampler=True, learning=True, untied=True, first_stage="generator_steps"
    )

    def __init__(
        self,
        generator: Network,
        discriminator: Network,
        masking: Callable[..., Masked],
        sampler: Callable[..., Tensor],
        vocabulary: Vocabulary,
        /,
        *,
        generator_steps: Annotated[int, Field(gt=0)],
        generator_weight: Annotated[float, Field(ge=0)] = 1.0,
        discriminator_weight: Annotated[float, Field(ge=0)] = 50.0,
        disallow_correct: bool = False,
    ) -> None:
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        self.masking, self.sampler, self.vocabulary = masking, sampler, vocabulary
        self.generator_steps, self.disallow_correct = generator_steps, disallow_correct
        self.generator_weight, self.discriminator_weight = generator_weight, discriminator_weight
        self.second = False

    def at_step(self, seed: int, step: int) -> None:
        """Enter the stage that `step` belongs to; the weights are taken over when the second begins."""
        if step == self.generator_steps:
            take_over(self.discriminator, self.generator)
        self.second = step >= self.generator_steps
        self.train(self.training)

    def train(self, mode: bool = True) -> TwoStage:
        super().train(mode)
        if self.second:
            self.generator.eval()  # type: ignore[attr-defined]  # a module by contract
        return self

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        """The loss of the present stage; the other term is there with a count of 0. In eval both are measured."""
        masked = mask(self.masking, batch, self.vocabulary, rng)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.second):
            guess = cloze(self.generator, masked, batch)
        nothing = batch.tokens.new_zeros((), dtype=guess.logits.dtype), masked.valid.sum() * 0
        learned = term(guess.losses(), masked.valid, self.generator_weight)
        if self.training and not self.second:
            return Losses({"generator": learned, "discriminator": Term(*nothing, self.discriminator_weight)})
        inputs = replace(guess, batch, self.sampler, self.vocabulary, rng, self.disallow_correct)
        logits, losses = detect(self.discriminator, inputs, batch)
        detected = term(losses, batch.mask, self.discriminator_weight)
        if self.training:
            return Losses({"generator": Term(*nothing, self.generator_weight), "discriminator": detected})
        predictions = {"generator": guess.prediction(self.vocabulary)}
        detection = Detection(inputs, inputs != batch.tokens, logits)
        return Losses({"generator": learned, "discriminator": detected}, predictions, detection)

    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Int[Tensor, ""]]:
        """Of the present stage's term: masked tokens, or tokens that are not padding; 0 of the other."""
        masked, real = mask(self.masking, batch, self.vocabulary, rng).valid.sum(), batch.mask.sum()
        return {"generator": masked * (not self.second), "discriminator": real * self.second}


@torch.no_grad()
def take_over(target: object, source: object) -> list[str]:
    """Copy every parameter of `source` to the one of `target` that has its name and shape; returns the names."""
    assert isinstance(target, nn.Module)
    assert isinstance(source, nn.Module)
    given, taken = dict(source.named_parameters()), []
    for name, parameter in target.named_parameters():
        if name in given and given[name].shape == parameter.shape:
            parameter.copy_(given[name])
            taken.append(name)
    return taken
