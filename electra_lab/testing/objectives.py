"""Laws of objectives."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from electra_lab.metrics import accumulator_of
from electra_lab.model.network import initialise
from electra_lab.model.pair import EmbeddingSizes, Tie, make_pair
from electra_lab.testing.common import PAD, SPECIAL, Contract, as_batch, close, count, law, padded_batches, vocabulary
from electra_lab.training.random import Streams
from registry import Batch, Losses, Masked, Needs, Objective, backbones, masking_strategies, objectives, samplers

few = settings(law, max_examples=30)  # of up to eight rows, each of which two networks read


class ObjectiveContract(Contract):
    """Laws of objectives, on tiny BERTs. Override `judged` if detection does not count at every token, and `predicted`
    if not all masked tokens are predicted.

    tie        the parameters that generator and discriminator share
    generator  the backbone of the generator
    depths     layers of the generator and of the discriminator
    """

    registry = objectives
    size = 24
    tie: Tie = "tokens"
    generator = "bert"
    depths = 1, 1

    def judged(self, batch: Batch, chosen: Tensor) -> Tensor:
        """Return the tokens whose detection counts, Bool[B T]; `chosen` are the masked ones."""
        return batch.attention_mask

    def predicted(self, maskable: Tensor, losses: Losses) -> int:
        """Return how many tokens are predicted in eval mode, of `maskable` ones, Bool[B T]."""
        return sum(count(0.15, int(row.sum())) for row in maskable)

    def build(
        self, *, masking: Callable[..., Masked] | None = None, sampler: Callable[..., Tensor] | None = None
    ) -> Any:
        """Return the objective in eval mode around seeded networks."""
        defaults = {name: field.default for name, field in objectives.get(self.name).schema.model_fields.items()}
        needs = Needs.of(self.kind, {**defaults, **self.options})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            bert: Any = backbones.get("bert").component
            sizes = EmbeddingSizes(self.size, 16, 64, 0.0)
            guessing: Any = backbones.get(self.generator).component
            generator = guessing(8, self.depths[0], 2, 64, dropout=0.0)
            discriminator = bert(16, self.depths[1], 2, 64, dropout=0.0)
            generator = generator if needs.generator else None
            pair = make_pair(generator, 8, discriminator, 16, sizes, self.tie, PAD, needs.heads,
                             needs.generator_heads, vocabulary(self.size))  # fmt: skip
            masking = masking or masking_strategies.get("replace_prob").component
            sampler = (sampler or samplers.get("temperature").component) if needs.sampler else None
            objective: Objective = self.component()(*pair, masking, sampler, vocabulary(self.size))
            initialise(objective)
            for parameter in objective.parameters():
                parameter.data += 0.3 * torch.randn_like(parameter)
        return objective.eval()

    @property
    def detection_term(self) -> str | None:
        """The term that is the cross-entropy of the detection."""
        declared: str | None = self.built.detection_term
        return declared

    @cached_property
    def built(self) -> Any:
        """The objective, for laws that try many batches."""
        return self.build()

    @few
    @given(data=st.data(), step=st.integers(0, 1000))
    def test_labels_are_consistent(self, data: st.DataObject, step: int) -> None:
        """Replaced iff the token differs from the original, only where masked; padding never counts."""
        batch = data.draw(padded_batches(self.size))
        with torch.no_grad():
            losses: Losses = self.built(batch, Streams.of(0, step, batch.example_ids))
        maskable = batch.attention_mask & ~torch.isin(batch.tokens, torch.tensor(SPECIAL))
        chosen = torch.zeros_like(batch.attention_mask)
        for name, asked in losses.predictions.items():
            chosen = torch.zeros_like(batch.attention_mask).scatter(1, asked.positions, asked.valid)
            forbidden = (chosen & ~maskable).nonzero().tolist()
            assert not forbidden, f"special or padding tokens were masked, at {forbidden}"
            due = self.predicted(maskable, losses)
            assert chosen.sum() == due, f"{int(chosen.sum())} tokens were masked, where the rule says {due}"
            assert (asked.loss[asked.valid] >= 0).all()
            if name in losses.terms and losses.terms[name].count == chosen.sum() != batch.attention_mask.sum():
                assert close(losses.terms[name].sum, asked.loss[asked.valid].sum())
        for term in losses.terms.values():
            real = int(batch.attention_mask.sum())
            assert term.count <= real, f"padding counts: {int(term.count)} of {real} real tokens"
        if (seen := losses.detection) is not None:
            wrong = (seen.replaced != (seen.inputs != batch.tokens)).nonzero().tolist()
            assert not wrong, f"labels do not say what happened, at {wrong}"
            strange = (seen.replaced & ~chosen).nonzero().tolist()
            assert not strange, f"tokens were replaced that were not masked, at {strange}"
            assert not torch.isin(seen.inputs[seen.replaced], torch.tensor(SPECIAL)).any()
        if seen is not None and (detection := losses.terms.get(self.detection_term or "")):
            judged = self.judged(batch, chosen)
            assert detection.count == judged.sum(), (
                f"{int(detection.count)} tokens count, where the rule says {judged.sum()}"
            )
            labels = {"replaced": seen.replaced, "masked": chosen}[self.kind.detection_labels]
            each_loss = nn.functional.binary_cross_entropy_with_logits(seen.logits, labels.float(), reduction="none")
            assert close(detection.sum, each_loss[judged].sum()), (
                f"the term '{self.detection_term}' is not the plain cross-entropy of the detection. If tokens have "
                "weights, set detection_term to None where the option says so."
            )

    def test_only_declared_terms_train_the_generator(self) -> None:
        """Others reach the parameters that it shares and no more, and so does the detection. Declared terms do."""
        objective = self.build().train()
        if getattr(objective, "generator", None) is None:
            pytest.skip("this objective has no generator")
        batch = as_batch(torch.randint(5, self.size, (4, 20), generator=torch.Generator().manual_seed(0)))
        losses: Losses = objective(batch, Streams.of(0, 0, batch.example_ids))
        seen = objective.eval()(batch, Streams.of(0, 0, batch.example_ids)).detection
        declared = set(objective.trains_generator)
        foreign = {name: t.sum for name, t in losses.terms.items() if not name.startswith("generator")}
        assert declared <= foreign.keys(), f"there are no terms {sorted(declared - foreign.keys())}"
        if seen is not None and "discriminator" not in declared:
            foreign["detection"] = seen.logits.square().sum()
        shared, reached = set(objective.discriminator.parameters()), set()
        learning = {name: loss for name, loss in foreign.items() if loss.requires_grad}
        for name, loss in learning.items():
            for parameter in set(objective.generator.parameters()) - shared:
                parameter.grad = None
            loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
            if any(parameter.grad is not None for parameter in set(objective.generator.parameters()) - shared):
                reached.add(name)
        assert reached == declared, f"{sorted(reached)} train the generator, declared are {sorted(declared)}"
        if learning:
            assert all(p.grad is not None and p.grad.any() for p in shared if p.numel() > 16 * 2)

    @few
    @given(data=st.data())
    def test_metrics_are_those_of_the_rows(self, data: st.DataObject) -> None:
        """Batches may be split and merged; every value is declared; a row that is shown is the row itself."""
        objective, batch = self.built, data.draw(padded_batches(self.size))
        accumulate: Any = accumulator_of(objective, vocabulary(self.size))

        def read(rows: Batch) -> Any:
            accumulator = accumulate({0})
            with torch.no_grad():
                accumulator.update(rows, objective(rows, Streams.of(0, 0, rows.example_ids)))
            return accumulator

        cut = data.draw(st.integers(0, len(batch)))
        whole, merged = read(batch), read(batch[:cut])
        merged.merge(read(batch[cut:]))
        values = whole.values()
        assert values.keys() <= whole.metrics.keys(), f"not declared: {values.keys() - whole.metrics.keys()}"
        assert merged.values() == pytest.approx(values, rel=1e-5, abs=1e-6, nan_ok=True)
        assert [e.originals for e in merged.examples()] == [e.originals for e in whole.examples()]
        assert all(e.originals == batch.tokens[0][batch.attention_mask[0]].tolist() for e in whole.examples())

    def test_a_sample_that_equals_the_original_is_original(self) -> None:
        """A sampler that always guesses right replaces nothing."""
        batch = as_batch(torch.randint(5, self.size, (4, 20), generator=torch.Generator().manual_seed(0)))
        positions: list[Tensor] = []

        def masking(*arguments: Any, **options: Any) -> Masked:
            masked: Masked = masking_strategies.get("replace_prob").component(*arguments, **options)
            positions[:] = [masked.positions]
            return masked

        objective = self.build(masking=masking, sampler=lambda *_: batch.tokens.gather(1, positions[0]).flatten())
        losses: Losses = objective(batch, Streams.of(0, 0, batch.example_ids))
        if losses.detection is not None:
            assert not losses.detection.replaced.any()
            assert torch.equal(losses.detection.inputs, batch.tokens)

    def test_every_purpose_has_random_numbers_of_its_own(self) -> None:
        """A purpose asked for twice gives the same numbers twice: samples would depend on masks."""
        asked: list[str] = []

        class Listening(Streams):
            def __call__(self, purpose: str) -> Any:
                asked.append(purpose)
                return super().__call__(purpose)

        batch = as_batch(torch.randint(5, self.size, (2, 20)))
        self.build()(batch, Listening.of(0, 0, batch.example_ids))
        assert len(set(asked)) == len(asked), f"asked for {asked}"

    def test_a_batch_of_padding_alone_is_harmless(self) -> None:
        """A finite loss and zero gradients, not NaN."""
        objective = self.build().train()
        tokens = torch.full((3, 16), PAD)
        batch = as_batch(tokens, torch.zeros_like(tokens, dtype=torch.bool))
        losses: Losses = objective(batch, Streams.of(0, 0, batch.example_ids))
        loss = torch.stack([term.sum / term.count.clamp(min=1) for term in losses.terms.values()]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        assert loss == 0
        assert all(p.grad is None or not p.grad.any() for p in objective.parameters())

    @few
    @given(data=st.data())
    def test_what_padding_holds_and_how_a_batch_is_split_never_matter(self, data: st.DataObject) -> None:
        """Sums and counts are those of the rows, whatever the padding holds; `counts` returns the counts beforehand.

        A batch is split between groups of rows, if the objective declares a `group`.
        """
        objective, batch = self.built.train(), data.draw(padded_batches(self.size))
        other = torch.randint(0, self.size, batch.tokens.shape, generator=torch.Generator().manual_seed(1))
        noisy = as_batch(torch.where(batch.attention_mask, batch.tokens, other), batch.attention_mask)
        group = getattr(objective, "group", 1)
        cut = group * data.draw(st.integers(1, max(1, len(batch) // group)))
        with torch.no_grad():
            whole, first, second = (
                objective(part, Streams.of(0, 0, part.example_ids)).terms for part in (batch, noisy[:cut], noisy[cut:])
            )
        beforehand = objective.counts(batch, Streams.of(0, 0, batch.example_ids))
        for name, term in whole.items():
            assert term.count == first[name].count + second[name].count == beforehand[name], name
            assert close(term.sum, first[name].sum + second[name].sum)
