"""A discriminator that learns from the generator of an earlier run."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from jaxtyping import Int
from pydantic import Field
from torch import Tensor

from electra_lab.objectives._shared import Corrupting, detect, must_learn, must_share_nothing, term
from registry import Batch, Flops, Losses, Masked, Network, Price, Setup, Streams, Vocabulary, objectives


@objectives.register("frozen_generator")
class FrozenGenerator(Corrupting):
    """Replaced token detection with a generator that was trained before and no longer learns.

    As in Fast-ELECTRA (Dong et al. 2023), without its temperature schedule. The generator is in eval mode and shares no
    parameter: embedding.tie must be `none`.

    run               the run directory whose newest checkpoint provides the generator: that run's generator, or its
                      discriminator if it was an `mlm` run. Corpus, tokenizer and the section `generator` must be equal
    disallow_correct  the generator's samples never equal the original
    """

    frozen = True

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
        super().__init__(generator, discriminator, masking, sampler, vocabulary)
        self.discriminator_weight, self.disallow_correct = discriminator_weight, disallow_correct
        self.run = run
        generator.requires_grad_(False)  # type: ignore[attr-defined]  # a module by contract

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        guess = self.guess(batch, rng)
        inputs = self.replace(guess, batch, rng)
        detection, losses = detect(self.discriminator, inputs, batch)
        terms = {"discriminator": term(losses, batch.attention_mask, self.discriminator_weight)}
        if self.training:
            return Losses(terms)
        return Losses(terms, {"generator": guess.prediction(self.vocabulary)}, detection)

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
