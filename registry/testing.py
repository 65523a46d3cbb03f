"""The laws that every component obeys, as suites to subclass. A plug-in's whole test is three lines:

    from registry.testing import SamplerContract

    class TestMySampler(SamplerContract):
        name = "my_sampler"

Where there is a CUDA device the laws run on it too. Needs pytest, hypothesis and scipy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from electra_lab.model.embeddings import Embeddings
from electra_lab.model.flops import counted_flops
from electra_lab.model.initialise import initialise
from electra_lab.model.network import Network
from electra_lab.model.pair import EmbeddingSizes, Tie, make_pair
from electra_lab.objectives._shared import draw
from electra_lab.training.random import Streams, seed_global
from registry import (
    Batch,
    Losses,
    Masked,
    Needs,
    Registry,
    Vocabulary,
    backbones,
    masking_strategies,
    objectives,
    samplers,
)

if TYPE_CHECKING:
    from torch import Tensor

on_each_device = pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.cuda,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
            ],
        ),
    ],
)
# Suites are inherited, so one property runs in several classes; that is meant.
law = settings(
    max_examples=60, deadline=None, report_multiple_bugs=False, suppress_health_check=[HealthCheck.differing_executors]
)

PAD, UNK, CLS, SEP, MASK = range(5)
SIGNIFICANCE = 1e-6  # of the statistical laws: a correct component fails one run in a million


def vocabulary(size: int, device: str = "cpu") -> Vocabulary:
    """A vocabulary of `size` tokens with BERT's special ones first; ids that are multiples of 3 continue words."""
    is_special = torch.zeros(size, dtype=torch.bool)
    is_special[[PAD, CLS, SEP, MASK]] = True
    ids = torch.arange(size)
    return Vocabulary(
        size=size,
        pad_id=PAD,
        cls_id=CLS,
        sep_id=SEP,
        mask_id=MASK,
        special_ids=(PAD, CLS, SEP, MASK),
        is_special=is_special.to(device),
        ordinary_ids=ids[~is_special].to(device),
        word_start=(~is_special & (ids % 3 != 0)).to(device),
        counts=(1000 // (ids + 1)).to(device),
    )


class _Contract:
    """A component by name, as the lab would call it."""

    name: str
    options: Mapping[str, Any] = {}
    registry: Registry[Callable[..., Any]]

    def component(self) -> Callable[..., Any]:
        return partial(self.registry.get(self.name).component, **self.options)


class SamplerContract(_Contract):
    """Laws of samplers. Override `distribution` if the sampler does not draw from softmax(logits)."""

    registry = samplers

    def distribution(self, logits: Tensor) -> Tensor:
        """Float64[V]: the probabilities that the sampler claims, for float32 logits [V]."""
        return logits.double().softmax(-1)

    @on_each_device
    @law
    @given(seed=st.integers(0, 2**32), rows=st.integers(1, 7), size=st.integers(6, 50), scale=st.floats(0, 100))
    def test_draws_are_ordinary_ids(self, device: str, seed: int, rows: int, size: int, scale: float) -> None:
        words = vocabulary(size, device)
        logits = (torch.randn(rows, 1, size, generator=torch.Generator().manual_seed(seed)) * scale).to(device)
        drawn = draw(self.component(), logits, words, _random(seed, rows, device))
        assert drawn.shape == (rows, 1)
        assert drawn.dtype == torch.int64
        assert ((drawn >= 0) & (drawn < size)).all(), "a sampler returned an id outside the vocabulary"
        assert not words.is_special[drawn].any(), "a sampler returned a special id"

    @on_each_device
    @pytest.mark.parametrize("arrives", ["float32", "bfloat16", "float16", "autocast"])
    def test_distribution_at_full_vocabulary(self, device: str, arrives: str) -> None:
        """Draws follow the claimed distribution at V = 30,522, in whatever precision the logits arrive."""
        size, rows, rounds = 30_522, 500, 16
        words = vocabulary(size, device)
        made = torch.randn(size, generator=torch.Generator().manual_seed(7)) * 3
        logits = made.to(device=device, dtype=getattr(torch, arrives) if arrives != "autocast" else torch.bfloat16)
        expected = self.distribution(logits.float().masked_fill(words.is_special, -math.inf)).cpu()
        drawn = []
        for number in range(rounds):
            with torch.autocast(device, torch.bfloat16, enabled=arrives == "autocast"):
                drawn.append(draw(self.component(), logits.expand(rows, 1, size), words, _random(number, rows, device)))
        counts = torch.bincount(torch.cat(drawn).flatten().cpu(), minlength=size).double()
        assert counts[expected == 0].sum() == 0, "a token without probability was drawn"
        assert chi_square_p(counts, expected) > SIGNIFICANCE

    @on_each_device
    def test_distribution_at_small_vocabulary(self, device: str) -> None:
        """Draws follow it among eight tokens too; among thousands the tail hides what is wrong with the rest."""
        size, rows = 12, 20_000
        words = vocabulary(size, device)
        logits = torch.randn(size, generator=torch.Generator().manual_seed(7)).to(device)
        expected = self.distribution(logits.masked_fill(words.is_special, -math.inf)).cpu()
        drawn = draw(self.component(), logits.expand(rows, 1, size), words, _random(0, rows, device))
        counts = torch.bincount(drawn.flatten().cpu(), minlength=size).double()
        assert counts[expected == 0].sum() == 0, "a token without probability was drawn"
        assert chi_square_p(counts, expected) > SIGNIFICANCE

    @on_each_device
    def test_draws_depend_on_the_random_numbers_alone(self, device: str) -> None:
        """Same numbers, same draw; the global generator plays no part; a half batch draws what the whole one does."""
        logits = torch.randn(8, 5, 200, generator=torch.Generator().manual_seed(3)).to(device)
        words, sampler = vocabulary(200, device), self.component()
        torch.manual_seed(0)
        once = draw(sampler, logits, words, _random(1, 8, device))
        torch.manual_seed(1)
        again = draw(sampler, logits, words, _random(1, 8, device))
        half = draw(sampler, logits[4:], words, _random(1, 4, device, start=4))
        assert torch.equal(once, again)
        assert torch.equal(once[4:], half)

    def test_steps_draw_differently(self) -> None:
        """Unless it draws nothing, another step gives another draw."""
        logits = torch.zeros(64, 1, 100)
        words, sampler = vocabulary(100), self.component()
        if (self.distribution(torch.zeros(100)) < 1).all():
            assert not torch.equal(*(draw(sampler, logits, words, _random(step, 64, "cpu")) for step in (1, 2)))


class MaskingContract(_Contract):
    """Laws of masking strategies. `exact`: each row has exactly count(maskable) masked tokens, uniformly chosen."""

    registry = masking_strategies
    exact = True

    def mask(self, tokens: Tensor, maskable: Tensor, words: Vocabulary, step: int, **options: float) -> Masked:
        random = _random(step, len(tokens), tokens.device.type)
        masked: Masked = self.component()(tokens, maskable, words, random, **options)
        return masked

    @on_each_device
    @law
    @given(data=st.data(), mask_prob=st.one_of(st.sampled_from([0.15, 0.25, 1.0]), st.floats(0.01, 1)))
    def test_masks_what_it_may_and_as_much_as_it_must(self, device: str, data: st.DataObject, mask_prob: float) -> None:
        """For every padding, every number of maskable tokens, 0, 1, 2 and all-pad rows included."""
        words = vocabulary(24, device)
        tokens, maskable = (t.to(device) for t in data.draw(batches(24)))
        masked = self.mask(tokens, maskable, words, 1, mask_prob=mask_prob)
        assert_lawfully_masked(masked, tokens, maskable, words, mask_prob, exact=self.exact)

    @on_each_device
    @pytest.mark.parametrize(
        ("replace_prob", "random_prob"), [(0.85, 0.0), (0.8, 0.1), (0.0, 1.0), (1.0, 0.0), (0.3, 0.3)]
    )
    def test_shares(self, device: str, replace_prob: float, random_prob: float) -> None:
        """Shares of [MASK], random and kept tokens lie within binomial bounds."""
        size = 1000
        words = vocabulary(size, device)
        tokens = torch.randint(5, size, (256, 128), generator=torch.Generator().manual_seed(0)).to(device)
        masked = self.mask(
            tokens, torch.ones_like(tokens, dtype=torch.bool), words, 1,
            mask_prob=0.15, replace_prob=replace_prob, random_prob=random_prob,
        )  # fmt: skip
        seen = masked.inputs.gather(1, masked.positions)[masked.valid]
        originals = tokens.gather(1, masked.positions)[masked.valid]
        kept_by_chance = random_prob / (size - 4)  # a random token may be the original
        shares = {
            "[MASK]": (int((seen == MASK).sum()), replace_prob),
            "kept": (int((seen == originals).sum()), 1 - replace_prob - random_prob + kept_by_chance),
        }
        for what, (number, share) in shares.items():
            assert binomial_p(number, len(seen), share) > SIGNIFICANCE, f"the share of {what} is off"

    @on_each_device
    def test_every_position_alike(self, device: str) -> None:
        """Uniform strategies choose every maskable position equally often, also beside padding."""
        if not self.exact:
            pytest.skip("this strategy does not claim to choose uniformly")
        length, rows = 20, 4000
        tokens = torch.full((rows, length), 7, device=device)
        maskable = torch.zeros(rows, length, dtype=torch.bool, device=device)
        maskable[:, 4:17] = True
        masked = self.mask(tokens, maskable, vocabulary(24, device), 1, mask_prob=0.2)
        counts = torch.bincount(masked.positions[masked.valid].cpu(), minlength=length)[4:17]
        assert chi_square_p(counts.double(), torch.full((13,), 1 / 13).double()) > SIGNIFICANCE

    @on_each_device
    def test_masks_depend_on_the_random_numbers_alone(self, device: str) -> None:
        words = vocabulary(500, device)
        tokens = torch.randint(5, 500, (16, 64), generator=torch.Generator().manual_seed(0)).to(device)
        maskable = torch.ones_like(tokens, dtype=torch.bool)
        whole, again, other = (self.mask(tokens, maskable, words, step) for step in (1, 1, 2))
        half = self.component()(tokens[8:], maskable[8:], words, _random(1, 8, device, start=8))
        for one, two in ((whole, again), (Masked(whole.inputs[8:], whole.positions[8:], whole.valid[8:]), half)):
            assert torch.equal(one.inputs, two.inputs)
            assert torch.equal(one.positions, two.positions)
        assert not torch.equal(whole.inputs, other.inputs)


def assert_lawfully_masked(
    masked: Masked, tokens: Tensor, maskable: Tensor, words: Vocabulary, mask_prob: float, *, exact: bool
) -> None:
    """The law of a masked batch, row by row."""
    positions, valid, length = masked.positions, masked.valid, tokens.shape[1]
    assert positions.shape == valid.shape == (len(tokens), count(mask_prob, length)), "not count(T) slots a row"
    assert masked.inputs.shape == tokens.shape
    for row in range(len(tokens)):
        chosen, most = positions[row][valid[row]], count(mask_prob, int(maskable[row].sum()))
        assert maskable[row][chosen].all(), "a special or padding token was masked"
        assert len(set(chosen.tolist())) == len(chosen), "a position was masked twice"
        right = len(chosen) == most if exact else min(most, 1) <= len(chosen) <= most
        assert right, f"{len(chosen)} tokens were masked, where the rule says {most}"
        untouched = torch.ones(length, dtype=torch.bool, device=tokens.device)
        untouched[chosen] = False
        assert torch.equal(masked.inputs[row][untouched], tokens[row][untouched]), "changed without being masked"
        seen, originals = masked.inputs[row][chosen], tokens[row][chosen]
        allowed = (seen == MASK) | (seen == originals) | ~words.is_special[seen]
        assert allowed.all(), "a special token other than [MASK] was put in"


class BackboneContract(_Contract):
    """Laws of backbones. `padding_tolerance`: how much the amount of padding may change real positions.

    `lengths` are tried; `sizes` are (dim, depth, heads).
    """

    registry = backbones
    sizes = (32, 2, 2)
    lengths = (16, 13)
    padding_tolerance = 1e-5

    def network(self, device: str, *, size: int = 40) -> Network:
        """The backbone with the lab's embeddings around it, seeded, in eval mode."""
        dim, depth, heads = self.sizes
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            backbone: nn.Module = self.component()(dim, depth, heads, 64)
            positions = backbone.positions == "lab"
            embeddings = Embeddings(size, dim, 64, positions=positions, dropout=0.0)
            network = Network(embeddings, backbone, dim, pad_id=PAD)
            initialise(network)
            for parameter in network.parameters():  # away from symmetric points such as zero biases and gates
                parameter.data += 0.1 * torch.randn_like(parameter)
        return network.to(device).eval()

    @on_each_device
    def test_contract(self, device: str) -> None:
        """Shape and type of the states, and the attributes that the lab reads."""
        network = self.network(device)
        backbone: Any = network.backbone
        assert backbone.positions in ("lab", "own")
        assert backbone.length_multiple >= 1
        assert len(backbone.layers) == self.sizes[1]
        of_layers = {p for layer in backbone.layers for p in layer.parameters()}
        assert of_layers <= set(backbone.parameters()), "layers must be the backbone's own modules"
        backbone.at_step(0, 1)
        for length in self.lengths:
            states = self.states(network, _tokens(3, length, 40, device))
            assert states.shape == (3, length, self.sizes[0])
            assert states.dtype == torch.float32
            assert states.isfinite().all()

    @on_each_device
    @law
    @given(seed=st.integers(0, 1000), real=st.integers(1, 15), left=st.booleans())
    def test_what_padding_holds_never_matters(self, device: str, seed: int, real: int, left: bool) -> None:
        """Neither the tokens under the mask nor the vectors that a backbone is given there."""
        network = self.network(device)
        backbone: Any = network.backbone
        length = max(self.lengths) + -max(self.lengths) % backbone.length_multiple
        generator = torch.Generator().manual_seed(seed)
        x, noise = torch.randn(2, 2, length, self.sizes[0], generator=generator).to(device)
        mask = torch.zeros(2, length, dtype=torch.bool, device=device)
        mask[:, length - real :] = left
        mask[:, :real] |= not left
        with torch.no_grad():
            one, two = backbone(x, mask), backbone(torch.where(mask.unsqueeze(-1), x, noise), mask)
        assert torch.equal(one[mask], two[mask])

    @on_each_device
    def test_how_much_padding_there_is(self, device: str) -> None:
        """More padding changes real positions by `padding_tolerance` at most."""
        network = self.network(device)
        tokens = _tokens(4, 13, 40, device)
        padded = torch.nn.functional.pad(tokens, (0, 19))
        mask = torch.nn.functional.pad(torch.ones_like(tokens, dtype=torch.bool), (0, 19))
        short, long = self.states(network, tokens), self.states(network, padded, mask)[:, :13]
        assert (short - long).abs().max() <= self.padding_tolerance * short.abs().max()

    @on_each_device
    def test_positions_matter(self, device: str) -> None:
        """Another order of the words gives other states, not the same ones in another order."""
        network = self.network(device)
        tokens = _tokens(2, 16, 40, device)
        order = torch.randperm(16, generator=torch.Generator().manual_seed(1)).to(device)
        assert (self.states(network, tokens)[:, order] - self.states(network, tokens[:, order])).abs().max() > 1e-2

    @on_each_device
    def test_context_matters(self, device: str) -> None:
        """A token's state depends on the other tokens, in both directions."""
        network = self.network(device)
        tokens = _tokens(1, 16, 40, device)
        for changed, watched in ((0, slice(1, 16)), (15, slice(0, 15))):
            other = tokens.clone()
            other[0, changed] = (other[0, changed] + 7 - 5) % 35 + 5
            difference = (self.states(network, tokens) - self.states(network, other)).abs()
            assert difference[:, watched].max() > 1e-4

    @on_each_device
    def test_every_parameter_learns(self, device: str) -> None:
        network = self.network(device).train()
        seed_global(0, 0)
        tokens = _tokens(4, 16, 40, device)
        states = network.hidden(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.zeros_like(tokens))
        weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(0)).to(device)
        (states * weights).sum().backward()  # type: ignore[no-untyped-call]
        idle = [n for n, p in network.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
        assert not idle, f"no gradient reaches {idle}"

    @on_each_device
    def test_rows_of_padding_alone_are_harmless(self, device: str) -> None:
        """Finite states and finite gradients, also for the rows beside them."""
        network = self.network(device).train()
        seed_global(0, 0)
        tokens = _tokens(3, 16, 40, device)
        mask = torch.ones_like(tokens, dtype=torch.bool)
        mask[1] = False
        states = network.hidden(tokens, mask, torch.zeros_like(tokens))
        assert states.isfinite().all()
        states[mask].sum().backward()  # type: ignore[no-untyped-call]
        assert all(p.grad.isfinite().all() for p in network.parameters() if p.grad is not None)

    @on_each_device
    def test_evaluation_is_a_function_of_its_input(self, device: str) -> None:
        """The global generator plays no part and is left as it was; a row does not feel the other rows."""
        network, tokens = self.network(device), _tokens(4, 16, 40, device)
        torch.manual_seed(0)
        once = self.states(network, tokens)
        after = torch.rand(1)
        torch.manual_seed(0)
        assert torch.equal(torch.rand(1), after), "evaluation moved torch's global generator"
        torch.manual_seed(1)
        assert torch.equal(once, self.states(network, tokens))
        assert torch.allclose(once[2:], self.states(network, tokens[2:]), atol=1e-5)

    def test_flops_formula_agrees_with_torch(self) -> None:
        """Within one percent of torch's counter (which also sees a few tiny products, such as rotary angles)."""
        network = self.network("cpu")
        backbone: Any = network.backbone
        if not hasattr(backbone, "flops"):
            pytest.skip("this backbone has no formula; the lab counts")
        for length in (32, 64):
            if length % backbone.length_multiple == 0:
                counted = counted_flops(backbone, length, self.sizes[0])
                assert backbone.flops(length) == pytest.approx(counted, rel=0.01)

    @staticmethod
    def states(network: Network, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
        with torch.no_grad():
            return network.hidden(tokens, mask, torch.zeros_like(tokens))


class ObjectiveContract(_Contract):
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
        batch = _batch(torch.randint(5, self.size, (4, 20), generator=torch.Generator().manual_seed(0)))
        loss = objective(batch, Streams(0, 0, batch.examples)).terms["discriminator"].sum
        if not loss.requires_grad:
            pytest.skip("the discriminator does not learn at the first step")
        loss.backward()
        shared = set(objective.discriminator.parameters())
        assert all(p.grad is None for p in objective.generator.parameters() if p not in shared)
        assert all(p.grad is not None and p.grad.any() for p in shared if p.numel() > 16 * 2)

    def test_a_sample_that_equals_the_original_is_original(self) -> None:
        """A sampler that always guesses right replaces nothing."""
        batch = _batch(torch.randint(5, self.size, (4, 20), generator=torch.Generator().manual_seed(0)))
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

        batch = _batch(torch.randint(5, self.size, (2, 20)))
        self.build()(batch, Listening(0, 0, batch.examples))
        assert len(set(asked)) == len(asked)

    def test_a_batch_of_padding_alone_is_harmless(self) -> None:
        """A finite loss and zero gradients, not NaN."""
        objective = self.build().train()
        tokens = torch.full((3, 16), PAD)
        batch = _batch(tokens, torch.zeros_like(tokens, dtype=torch.bool))
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
        noisy = _batch(torch.where(batch.mask, batch.tokens, other), batch.mask)
        whole, same = (objective(b, Streams(0, 0, b.examples)).terms for b in (batch, noisy))
        parts = [batch[row : row + 1] for row in range(len(batch))]
        split = [objective(part, Streams(0, 0, part.examples)).terms for part in parts]
        foretold = objective.counts(batch, Streams(0, 0, batch.examples))
        for name, term in whole.items():
            assert term.count == same[name].count == sum(terms[name].count for terms in split) == foretold[name]
            assert close(term.sum, same[name].sum)
            assert close(term.sum, torch.stack([terms[name].sum for terms in split]).sum())


def close(one: Tensor, two: Tensor) -> bool:
    return torch.allclose(one, two, rtol=1e-4, atol=1e-4)


@st.composite
def padded_batches(draw: st.DrawFn, size: int) -> Batch:
    """Batches as the lab makes them: real tokens first, special ones among them, then padding."""
    tokens, real = draw(batches(size))
    lengths = real.sum(1, keepdim=True)
    return _batch(tokens, torch.arange(tokens.shape[1]) < lengths)


def _batch(tokens: Tensor, mask: Tensor | None = None) -> Batch:
    mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
    return Batch(tokens, mask, torch.zeros_like(tokens), torch.arange(len(tokens)))


@st.composite
def batches(draw: st.DrawFn, size: int) -> tuple[Tensor, Tensor]:
    """Tokens Int[B T] and what may be masked Bool[B T]: special tokens anywhere, padding on either side, empty rows."""
    length, rows = draw(st.integers(2, 40)), draw(st.integers(1, 5))
    ids = st.lists(st.integers(0, size - 1), min_size=length, max_size=length)
    tokens = torch.tensor([draw(ids) for _ in range(rows)])
    real = torch.zeros(rows, length, dtype=torch.bool)
    for row in range(rows):
        start = draw(st.integers(0, length))
        real[row, start : draw(st.integers(start, length))] = True
    return tokens, real & ~torch.isin(tokens, torch.tensor([PAD, CLS, SEP, MASK]))


def count(mask_prob: float, maskable: int) -> int:
    """How many of `maskable` tokens are masked."""
    return math.ceil(mask_prob * maskable - 1e-9)


def chi_square_p(counts: Tensor, probabilities: Tensor) -> float:
    """p-value of observed counts; ids are pooled, most likely first, into bins of ten expected or more."""
    from scipy.stats import chisquare

    total, order = counts.sum(), probabilities.argsort(descending=True)
    expected, observed = (probabilities[order] * total).tolist(), counts[order].tolist()
    bins: list[list[float]] = [[0.0, 0.0]]
    for e, o in zip(expected, observed, strict=True):
        if bins[-1][0] >= 10:
            bins.append([0.0, 0.0])
        bins[-1][0] += e
        bins[-1][1] += o
    if len(bins) > 1 and bins[-1][0] < 10:
        e, o = bins.pop()
        bins[-1][0] += e
        bins[-1][1] += o
    if len(bins) == 1:
        return 1.0
    wanted, seen = zip(*bins, strict=True)
    scale = sum(seen) / sum(wanted)
    return float(chisquare(seen, [w * scale for w in wanted]).pvalue)


def binomial_p(number: int, trials: int, share: float) -> float:
    from scipy.stats import binomtest

    return float(binomtest(number, trials, min(max(share, 0.0), 1.0)).pvalue)


def _random(step: int, rows: int, device: str, *, start: int = 0) -> Any:
    return Streams(0, step, torch.arange(start, start + rows, device=device))("law")


def _tokens(rows: int, length: int, size: int, device: str) -> Tensor:
    return torch.randint(5, size, (rows, length), generator=torch.Generator().manual_seed(length)).to(device)
