"""Laws of objectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from electra_lab.model.initialise import initialise
from electra_lab.model.pair import EmbeddingSizes, Tie, make_pair
from electra_lab.training.random import Streams
from registry import (
    Batch,
    Losses,
    Masked,
    Needs,
    backbones,
    masking_strategies,
    objectives,
    samplers,
)
from registry.testing.common import (
    CLS,
    MASK,
    PAD,
    SEP,
    Contract,
    as_batch,
    close,
    count,
    law,
    padded_batches,
    vocabulary,
)

if TYPE_CHECKING:
    from torch import Tensor


class ObjectiveContract(Contract):
    """Laws of objectives, on tiny BERTs. Override `judged` if detection is not judged at every token."""

    registry = objectives
    size = 24

    def judged(self, batch: Batch, chosen: Tensor) -> Tensor:
        """Bool[B T]: the tokens whose detection counts; `chosen` are the masked ones."""
        return batch.mask

    def build(
        self, *, masking: Callable[..., Masked] | None = None, sampler: Callable[..., Tensor] | None = None
    ) -> Any:
        """The objective in eval mode around seeded networks."""
        needs: Needs = self.registry.get(self.name).component.needs  # type: ignore[attr-defined]  # by contract
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            bert = backbones.get("bert").component
            sizes = EmbeddingSizes(self.size, 16, 64, 0.0)
            generator, discriminator = bert(8, 1, 1, 64, dropout=0.0), bert(16, 1, 2, 64, dropout=0.0)
            tie: Tie = "none" if needs.untied else "tokens"
            pair = make_pair(generator if needs.generator else None, 8, discriminator, 16, sizes, tie, PAD, needs.head)
            masking = masking or masking_strategies.get("replace_prob").component
            sampler = (sampler or samplers.get("temperature").component) if needs.sampler else None
            objective: nn.Module = self.component()(*pair, masking, sampler, vocabulary(self.size))
            initialise(objective)
            for parameter in objective.parameters():
                parameter.data += 0.3 * torch.randn_like(parameter)
        return objective.eval()

    @law
    @given(data=st.data(), step=st.integers(0, 1000))
    def test_labels_are_consistent(self, data: st.DataObject, step: int) -> None:
        """Replaced iff the token differs from the original, only where masked; padding never counts."""
        batch = data.draw(padded_batches(self.size))
        losses: Losses = self.build()(batch, Streams(0, step, batch.examples))
        maskable = batch.mask & ~torch.isin(batch.tokens, torch.tensor([PAD, CLS, SEP, MASK]))
        chosen = torch.zeros_like(batch.mask)
        for name, asked in losses.predictions.items():
            chosen = torch.zeros_like(batch.mask).scatter(1, asked.positions, asked.valid)
            assert (maskable | ~chosen).all(), "a special or padding token was masked"
            assert chosen.sum() == sum(count(0.15, int(m.sum())) for m in maskable)
            assert (asked.loss[asked.valid] >= 0).all()
            if name in losses.terms and losses.terms[name].count == chosen.sum() != batch.mask.sum():
                assert close(losses.terms[name].sum, asked.loss[asked.valid].sum())
        for term in losses.terms.values():
            assert term.count <= batch.mask.sum(), "padding counts"
        if (seen := losses.detection) is not None:
            assert torch.equal(seen.replaced, seen.inputs != batch.tokens), "a label does not say what happened"
            assert (chosen | ~seen.replaced).all(), "a token was replaced that was not masked"
            assert not torch.isin(seen.inputs[seen.replaced], torch.tensor([PAD, CLS, SEP, MASK])).any()
            judged = self.judged(batch, chosen)
            assert losses.terms["discriminator"].count == judged.sum(), "the wrong tokens are judged"
            each = nn.functional.binary_cross_entropy_with_logits(seen.logits, seen.replaced.float(), reduction="none")
            assert close(losses.terms["discriminator"].sum, each[judged].sum())

    def test_the_studied_network_teaches_the_generator_nothing(self) -> None:
        """Its loss reaches no parameter of the generator but what they share."""
        objective = self.build().train()
        if getattr(objective, "generator", None) is None:
            pytest.skip("this objective has no generator")
        batch = as_batch(torch.randint(5, self.size, (4, 20), generator=torch.Generator().manual_seed(0)))
        loss = objective(batch, Streams(0, 0, batch.examples)).terms["discriminator"].sum
        if not loss.requires_grad:
            pytest.skip("the discriminator does not learn at the first step")
        loss.backward()
        shared = set(objective.discriminator.parameters())
        assert all(p.grad is None for p in objective.generator.parameters() if p not in shared)
        assert all(p.grad is not None and p.grad.any() for p in shared if p.numel() > 16 * 2)

    def test_a_sample_that_equals_the_original_is_original(self) -> None:
        """A sampler that always guesses right replaces nothing."""
        batch = as_batch(torch.randint(5, self.size, (4, 20), generator=torch.Generator().manual_seed(0)))
        positions: list[Tensor] = []

        def masking(*arguments: Any, **options: Any) -> Masked:
            masked: Masked = masking_strategies.get("replace_prob").component(*arguments, **options)
            positions[:] = [masked.positions]
            return masked

        objective = self.build(masking=masking, sampler=lambda *_: batch.tokens.gather(1, positions[0]).flatten())
        losses: Losses = objective(batch, Streams(0, 0, batch.examples))
        if losses.detection is not None:
            assert not losses.detection.replaced.any()
            assert torch.equal(losses.detection.inputs, batch.tokens)

    def test_every_purpose_has_random_numbers_of_its_own(self) -> None:
        """A purpose asked for twice gives the same numbers twice: what is sampled would hang on what is masked."""
        asked: list[str] = []

        class Listening(Streams):
            def __call__(self, purpose: str) -> Any:
                asked.append(purpose)
                return super().__call__(purpose)

        batch = as_batch(torch.randint(5, self.size, (2, 20)))
        self.build()(batch, Listening(0, 0, batch.examples))
        assert len(set(asked)) == len(asked)

    def test_a_batch_of_padding_alone_is_harmless(self) -> None:
        """A finite loss and zero gradients, not NaN."""
        objective = self.build().train()
        tokens = torch.full((3, 16), PAD)
        batch = as_batch(tokens, torch.zeros_like(tokens, dtype=torch.bool))
        losses: Losses = objective(batch, Streams(0, 0, batch.examples))
        loss = torch.stack([term.sum / term.count.clamp(min=1) for term in losses.terms.values()]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        assert loss == 0
        assert all(p.grad is None or not p.grad.any() for p in objective.parameters())

    @law
    @given(data=st.data())
    def test_what_padding_holds_and_how_a_batch_is_split_never_matter(self, data: st.DataObject) -> None:
        """Sums and counts are those of the rows, whatever stands in the padding; `counts` foretells the counts."""
        objective, batch = self.build().train(), data.draw(padded_batches(self.size))
        other = torch.randint(0, self.size, batch.tokens.shape, generator=torch.Generator().manual_seed(1))
        noisy = as_batch(torch.where(batch.mask, batch.tokens, other), batch.mask)
        whole, same = (objective(b, Streams(0, 0, b.examples)).terms for b in (batch, noisy))
        parts = [batch[row : row + 1] for row in range(len(batch))]
        split = [objective(part, Streams(0, 0, part.examples)).terms for part in parts]
        foretold = objective.counts(batch, Streams(0, 0, batch.examples))
        for name, term in whole.items():
            assert term.count == same[name].count == sum(terms[name].count for terms in split) == foretold[name]
            assert close(term.sum, same[name].sum)
            assert close(term.sum, torch.stack([terms[name].sum for terms in split]).sum())
