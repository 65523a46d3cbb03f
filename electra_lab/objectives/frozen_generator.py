"""A discriminator that learns from the generator of an earlier run."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxtyping import Int
from torch import Tensor

from electra_lab.objectives._shared import Corrupting, Weight, detect, must_learn, must_share_nothing, term
from registry import Batch, Flops, Losses, Price, Setup, Streams, objectives


@objectives.register("frozen_generator")
class FrozenGenerator(Corrupting):
    """Replaced token detection with a generator that was trained before and no longer learns.

    As in Fast-ELECTRA (Dong et al. 2023), whose temperature falls during training: a schedule of sampler.temperature,
    whose shape and numbers you choose. The generator is in eval mode and shares no parameter: embedding.tie must be
    `none`.

    run               the run directory whose newest checkpoint provides the generator: that run's generator, or its
                      discriminator if it was an `mlm` run. Text, splits, tokenizer and the section `generator` must be
                      equal. Or the folder of any model with a head for masked language modelling, as `init` takes it
    disallow_correct  True if the generator's samples never equal the original
    """

    frozen = True

    run: Path
    discriminator_weight: Weight = 50.0
    disallow_correct: bool = False

    def __post_init__(self) -> None:
        self.generator.requires_grad_(False).eval()  # type: ignore[attr-defined]  # a module by contract

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        # 1) Replace the masked tokens.
        guess = self.guess(batch, rng)
        inputs = self.replace(guess, batch, rng)
        predictions = {} if self.training else {"generator": guess.prediction(self.vocabulary)}

        # 2) Let the discriminator find them.
        detection, losses = detect(self.discriminator, inputs, batch)
        terms = {"discriminator": term(losses, batch.attention_mask, self.discriminator_weight)}
        return Losses(terms, predictions, None if self.training else detection)

    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Int[Tensor, ""]]:
        """Return the number of tokens that are not padding."""
        return {"discriminator": batch.attention_mask.sum()}

    def flops(self, price: Price) -> Flops:
        return Flops(price("generator", learns=False) + price("discriminator"))

    def earlier_runs(self) -> Mapping[str, Path]:
        return {"generator": self.run}

    @classmethod
    def conflicts(cls, setup: Setup, options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        yield from must_learn("frozen_generator", setup)
        yield from must_share_nothing("frozen_generator", setup)
