"""Losses of tokens against common implementations and by hand: mlm, replace_mlm, electra_masked_only; the copy gate of
all_tokens_mlm; detection and correction of electra_correct, by METRO's own criterion and COCO-LM's mixture."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from electra_lab.objectives import _shared
from electra_lab.objectives._shared import copy_losses
from electra_lab.testing import CLS, MASK, PAD, SEP
from electra_lab.training.random import Streams
from tests.electra_lab.objectives import tiny


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_mlm_is_cross_entropy_at_the_masked_tokens(smoothing: float) -> None:
    masking, batch = tiny.Chosen(), tiny.sentences()
    objective = tiny.berts("mlm", masking=masking, smoothing=smoothing).double().train()
    losses = objective(batch, tiny.streams(batch))
    expected = tiny.plain_mlm(objective.discriminator, masking.masked.inputs, batch, masking.at, smoothing)
    assert int(masking.at.sum()) == 6 * 2  # 15% of 13
    torch.testing.assert_close(tiny.total(losses), expected)
    found, wanted = tiny.gradients(objective, tiny.total(losses)), tiny.gradients(objective, expected)
    tiny.assert_close(found, wanted)
    assert found.keys() == {name for name, _ in objective.named_parameters()}


def test_mlm_has_no_generator_and_draws_nothing() -> None:
    """Generator and sampler are None, and it uses random numbers only for masks."""
    objective, batch = tiny.berts("mlm"), tiny.sentences()
    given, purposes = tiny.streams(batch), []

    def spy(purpose: str) -> Any:
        purposes.append(purpose)
        return given(purpose)

    losses = objective.eval()(batch, spy)
    assert purposes == ["masking"]
    assert {name.split(".")[0] for name in objective.state_dict()} == {"discriminator"}
    assert losses.terms.keys() == losses.predictions.keys() == {"discriminator"}
    assert losses.detection is None


def test_replace_mlm_reads_samples_and_predicts_originals() -> None:
    """Both losses and all gradients are those of plain masked language modelling, on [MASK] and on samples."""
    masking, batch = tiny.Chosen(), tiny.sentences()
    sampled = torch.randint(5, 30, (6, 3))  # 15% of 20 positions: one slot more than tokens to mask
    objective = tiny.berts("replace_mlm", "tokens", masking, lambda *_: sampled.flatten(), discriminator_weight=2.0)
    objective = objective.double().train()
    losses = objective(batch, tiny.streams(batch))
    masked = masking.masked
    samples = torch.where(masked.valid, sampled, batch.tokens.gather(1, masked.positions))
    replaced = batch.tokens.scatter(1, masked.positions, samples)
    assert ((replaced != batch.tokens) & ~masking.at).sum() == 0 < (replaced != batch.tokens).sum()
    assert not (replaced == MASK).any()
    expected = tiny.plain_mlm(objective.generator, masked.inputs, batch, masking.at)
    expected = expected + 2 * tiny.plain_mlm(objective.discriminator, replaced, batch, masking.at)
    torch.testing.assert_close(tiny.total(losses), expected)
    tiny.assert_close(tiny.gradients(objective, tiny.total(losses)), tiny.gradients(objective, expected))


def test_replace_mlm_measures_both_networks() -> None:
    batch = tiny.rows(CLS, 7, 8, 9, number=2)
    objective = tiny.tables("replace_mlm", tiny.Fixed(1, 3), tiny.Says(5, 9), 4)
    objective.discriminator.guesses.data[1, 7] = 100.0
    first, second = (objective(batch, tiny.streams(batch)).predictions[n] for n in ("generator", "discriminator"))
    assert first.saw_mask.all()
    assert not second.saw_mask.any()
    assert second.correct.tolist() == [[True, bool(objective.discriminator.guesses[3].argmax() == 9)]] * 2
    assert float(second.loss[0, 0].detach()) == pytest.approx(0, abs=1e-9)
    torch.testing.assert_close(second.loss[0, 1], -objective.discriminator.guesses[3].log_softmax(-1)[9])


@pytest.mark.parametrize("kept", [False, True])
def test_masked_only_is_cross_entropy_over_the_masked_tokens(kept: bool) -> None:
    """Replaced or not, each counts once, also if it was kept instead of [MASK]; other tokens and empty slots have no
    gradient."""
    batch, masking = tiny.rows(CLS, 7, 8, 9, SEP, PAD), tiny.Fixed(1, 3, empty=2)
    objective = tiny.tables("electra_masked_only", masking, tiny.Says(5, 9, 6, 6), 6)
    if kept:
        objective.masking = lambda tokens, *_: replace(masking(tokens), inputs=tokens)
    term = objective(batch, tiny.streams(batch)).terms["discriminator"]
    logits = torch.stack([objective.discriminator.scores[1, 5], objective.discriminator.scores[3, 9]])
    expected = F.binary_cross_entropy_with_logits(logits, torch.tensor([1.0, 0.0]).double(), reduction="sum")
    torch.testing.assert_close(term.sum, expected)
    assert int(term.count) == 2 == int(objective.counts(batch, tiny.streams(batch))["discriminator"])
    reached = tiny.gradients(objective, term.sum)["discriminator.scores"].nonzero().tolist()
    assert reached == [[1, 5], [3, 9]]


def losses(logits: torch.Tensor, copy: torch.Tensor, seen: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    said = torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens, reduction="none")
    return copy_losses(said, copy, seen == tokens)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), gate=st.floats(-40, 40), seen=st.integers(0, tiny.SIZE - 1), scale=st.floats(0, 20))
def test_the_probabilities_of_all_tokens_sum_to_one(seed: int, gate: float, seen: int, scale: float) -> None:
    numbers = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(1, 1, tiny.SIZE, generator=numbers, dtype=torch.float64)).expand(tiny.SIZE, 1, -1)
    copy = torch.full((tiny.SIZE, 1), gate, dtype=torch.float64)
    every = torch.arange(tiny.SIZE).unsqueeze(1)
    probabilities = (-losses(logits, copy, torch.full_like(every, seen), every)).exp()
    assert float(probabilities.sum()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("gate", [1e4, -1e4, 88.0, -88.0, 0.0])
@pytest.mark.parametrize("target", [1e4, -1e4, 0.0])
@pytest.mark.parametrize("seen", [5, 6])
def test_extremes_are_finite_in_float32(gate: float, target: float, seen: int) -> None:
    """Closed and open gates, certain and impossible targets, and their gradients."""
    logits, copy = torch.zeros(1, 1, tiny.SIZE), torch.full((1, 1), gate, requires_grad=True)
    logits[..., 5] = target
    logits.requires_grad_()
    loss = losses(logits, copy, torch.tensor([[seen]]), torch.tensor([[5]]))
    loss.sum().backward()
    exact = _exact(target, gate, seen == 5)
    assert loss.item() == pytest.approx(exact, rel=1e-5, abs=1e-5)
    for tensor in (logits, copy):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()
    if loss.item() > 1:
        assert logits.grad.any() or copy.grad.any(), "a wrong prediction has no gradient"


def _exact(target: float, gate: float, copied: bool) -> float:
    log_d, log_not = (-max(-g, 0) - math.log1p(math.exp(-abs(g))) for g in (gate, -gate))
    largest = max(target, 0.0)
    log_p = target - largest - math.log(math.exp(target - largest) + (tiny.SIZE - 1) * math.exp(-largest))
    larger, smaller = sorted([log_not + log_p, log_d if copied else -math.inf])
    return -(smaller + math.log1p(math.exp(larger - smaller)))


def test_the_loss_is_the_mean_over_all_tokens_of_the_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a real network in float64, by the formula of the paper, without padding; metrics cover the masked tokens.

    The logits of three positions of each row exist at a time.
    """
    monkeypatch.setattr(_shared, "AT_ONCE", 18)
    batch = tiny.sentences()
    objective = tiny.berts("all_tokens_mlm", "tokens", sampler=lambda logits, _: logits.argmin(-1)).double().eval()
    seen: list[torch.Tensor] = []
    objective.discriminator.backbone.register_forward_hook(lambda *call: seen.append(call[2]))
    embedded: list[torch.Tensor] = []
    objective.discriminator.embeddings.register_forward_hook(lambda _, given, __: embedded.append(given[0]))
    losses = objective(batch, Streams.of(0, 0, batch.example_ids))
    inputs, hidden = embedded[-1], seen[-1]  # tied by the token table alone, so these are the discriminator's
    gate = torch.sigmoid(hidden @ objective.copy.weight[0] + objective.copy.bias)
    every = torch.arange(20).expand(6, -1)
    softmax = objective.discriminator.token_logits(hidden, every).softmax(-1)
    mixture = (1 - gate).unsqueeze(-1) * softmax
    mixture += gate.unsqueeze(-1) * torch.nn.functional.one_hot(inputs, 30)
    expected = -mixture.gather(-1, batch.tokens.unsqueeze(-1)).squeeze(-1).log()
    term, asked = losses.terms["discriminator"], losses.predictions["discriminator"]
    plain = expected[batch.attention_mask].sum()
    torch.testing.assert_close(term.sum, plain)
    tiny.assert_close(tiny.gradients(objective, term.sum), tiny.gradients(objective, plain))
    assert int(term.count) == 6 * 15
    assert (inputs != batch.tokens).any()
    torch.testing.assert_close(asked.loss, expected.gather(1, asked.positions))
    likeliest = mixture.argmax(-1) == batch.tokens
    assert torch.equal(asked.correct, likeliest.gather(1, asked.positions))
    assert not asked.saw_mask.any()


def test_every_token_teaches_and_padding_does_not() -> None:
    batch = tiny.rows(CLS, 7, 8, SEP, PAD)
    objective = tiny.tables("all_tokens_mlm", tiny.Fixed(1), tiny.Says(5), 5).train()
    found = tiny.gradients(objective, objective(batch, Streams.of(0, 0, batch.example_ids)).terms["discriminator"].sum)
    assert found["discriminator.guesses"].any(-1).tolist() == [True, True, True, True, False]
    # Sampled tokens at their positions, the tokens read elsewhere: the gate reads the states of its input.
    assert found["copy.weight"][0].nonzero().flatten().tolist() == [CLS, SEP, 5, 8]
    assert "generator.guesses" not in found


# [CLS] 7 8 9 5 6 [SEP] and padding; 7 is drawn again, 9 and 6 change places; a fourth slot is empty.
ORIGINALS, DRAWN, AT = [CLS, 7, 8, 9, 5, 6, SEP, PAD], [CLS, 7, 8, 6, 5, 9, SEP, PAD], [1, 3, 5]


def toy(**options: Any) -> tuple[Any, Any]:
    masking, sampler = tiny.Fixed(*AT, empty=1), tiny.Says(7, 6, 9, 5)
    return tiny.tables("electra_correct", masking, sampler, 8, **options), tiny.rows(*ORIGINALS, number=2)


@pytest.mark.parametrize(
    ("options", "loss", "slopes"),
    [
        ({}, 52.522526118829724, (-0.15913400026591848, -0.004400874852069907, 6.517515510274645)),
        (
            {"correction": "weighted"},
            51.57672762775912,
            (-0.15913400026591848, -0.009568387282394265, 6.517515510274645),
        ),
    ],
)
def test_losses_and_gradients_are_those_of_the_official_criterion(options: Any, loss: float, slopes) -> None:
    """T5MetroCriterion of gonglinyuan/metro_t0 (b6d0867), unmodified, on these tables and draws.

    masked_positions_only: lm, rtd_loss_weight: 50. It detects in float32. Of each gradient, its product with cos(0),
    cos(1), ...
    """
    objective, batch = toy(**options)
    losses = objective.train()(batch, tiny.streams(batch))
    assert tiny.total(losses).item() == pytest.approx(loss, abs=1e-5)
    found = tiny.gradients(objective, tiny.total(losses))
    for name, slope in zip(("generator.guesses", "discriminator.guesses", "discriminator.scores"), slopes, strict=True):
        waves = torch.arange(found[name].numel()).double().cos()
        assert float(found[name].flatten() @ waves) == pytest.approx(slope, abs=1e-5), name
    assert {name: int(part.count) for name, part in losses.terms.items()} == {
        "generator": 6, "discriminator": 14, "correction": 6,
    }  # fmt: skip


@pytest.mark.parametrize("correction", ["plain", "weighted", "copy"])
def test_the_correction_is_its_formula_and_teaches_the_token_head_alone(correction: str) -> None:
    """With explicit probabilities. The detector gets no gradient, not even where its logit is a weight."""
    objective, batch = toy(correction=correction)
    found = objective.train()(batch, tiny.streams(batch)).terms["correction"].sum
    # Plainly
    discriminator = objective.discriminator
    softmax = discriminator.guesses[AT].softmax(-1)  # [3 V]
    replaced = discriminator.scores[range(8), DRAWN][AT].sigmoid().detach()
    losses = []
    for q, p, position in zip(softmax, replaced, AT, strict=True):
        original, seen = ORIGINALS[position], DRAWN[position]
        copied = (1 - p) * (original == seen)
        forms = {"plain": q[original], "weighted": q[original] ** p, "copy": copied + p * q[original]}
        losses.append(-forms[correction].log())
    expected = 2 * torch.stack(losses).sum()  # two rows
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    slopes = tiny.gradients(objective, found)
    tiny.assert_close(slopes, tiny.gradients(objective, expected))
    assert slopes.keys() == {"discriminator.guesses"}


def test_extreme_suspicions_are_finite() -> None:
    """For a detector and a head that are certain, rightly or wrongly, in any form."""
    for correction in ("plain", "weighted", "copy"):
        for certain in (-1e4, 1e4):
            objective, batch = toy(correction=correction)
            objective.discriminator.scores.data.fill_(certain)
            objective.discriminator.guesses.data[:, 7] = 1e3
            losses = objective.train()(batch, tiny.streams(batch))
            assert tiny.total(losses).isfinite()
            assert all(slope.isfinite().all() for slope in tiny.gradients(objective, tiny.total(losses)).values())


def test_the_accuracy_of_corrections_is_split_into_replaced_and_unreplaced() -> None:
    """The head predicts 7 except at the last masked position, where it is right; the empty slot never counts."""
    objective, batch = toy()
    objective.discriminator.guesses.data[:, 7] = 9.0
    objective.discriminator.guesses.data[5, ORIGINALS[5]] = 10.0
    found = objective(batch, tiny.streams(batch))
    read = {name: (int(part.sum), int(part.count)) for name, part in found.metrics.items()}
    assert read == {"correction_accuracy_replaced": (2, 4), "correction_accuracy_unreplaced": (2, 2)}
    assert read.keys() == objective.metrics.keys()
    asked = found.predictions["discriminator"]
    assert asked.correct[:, :3].tolist() == [[True, False, True]] * 2
    assert not asked.saw_mask.any()


def test_one_pass_of_the_discriminator_serves_both_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, batch = toy()
    seen: list[Tensor] = []
    forward = objective.discriminator.hidden
    monkeypatch.setattr(objective.discriminator, "hidden", lambda *given: seen.append(given[0]) or forward(*given))
    objective.train()(batch, tiny.streams(batch))
    assert [tokens.tolist() for tokens in seen] == [[DRAWN] * 2]


def test_weights_multiply_their_terms() -> None:
    plain, batch = toy()
    weighted, _ = toy(generator_weight=2.0, discriminator_weight=3.0, correction_weight=5.0)
    weights = {"generator": 2.0, "discriminator": 3.0, "correction": 5.0}
    means = {name: term.sum / term.count for name, term in plain(batch, tiny.streams(batch)).terms.items()}
    expected = sum(weight * means[name] for name, weight in weights.items())
    torch.testing.assert_close(tiny.total(weighted(batch, tiny.streams(batch))), expected)
