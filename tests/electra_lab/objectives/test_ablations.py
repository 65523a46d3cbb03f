"""The ablations of Clark et al. (2020, section 3.5) against plain computations, and what `electra` may be told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from electra_lab.training.random import Streams
from registry import masking_strategies, samplers
from registry.testing import CLS, MASK, PAD, SEP, SIGNIFICANCE, chi_square_p
from tests.electra_lab.objectives.tiny import (
    ORDINARY,
    SIZE,
    Fixed,
    Says,
    assert_close,
    berts,
    gradients,
    rows,
    sentences,
    tables,
    total,
)

DRAWING = ["electra", "electra_masked_only", "replace_mlm", "all_tokens_mlm", "two_stage", "frozen_generator"]
REQUIRED: dict[str, dict[str, Any]] = {"two_stage": {"generator_steps": 1}, "frozen_generator": {"run": "nowhere"}}


def streams(batch: Any, step: int = 0) -> Streams:
    return Streams(0, step, batch.examples)


# electra


@pytest.mark.parametrize("name", DRAWING)
@pytest.mark.parametrize("disallow_correct", [True, False])
def test_disallow_correct_takes_the_original_out_of_the_softmax(name: str, disallow_correct: bool) -> None:
    """What the sampler is shown: the softmax over ordinary tokens, without the original and renormalised."""
    sampler, batch = Says(5, 6), rows(CLS, 7, 8, 9, SEP, number=3)
    objective = tables(name, Fixed(1, 3), sampler, 5, disallow_correct=disallow_correct, **REQUIRED.get(name, {}))
    objective(batch, streams(batch))
    for slot, (position, original) in enumerate([(1, 7), (3, 9)]):
        expected = objective.generator.guesses[position].detach().exp()
        expected[[PAD, CLS, SEP, MASK]] = 0
        if disallow_correct:
            expected[original] = 0
        seen = sampler.logits[slot::2].double().softmax(-1)
        torch.testing.assert_close(seen, (expected / expected.sum()).expand(3, -1), rtol=1e-5, atol=0)


@pytest.mark.parametrize("sampler", ["gumbel", "temperature"])
def test_disallow_correct_never_draws_the_original_and_the_others_as_before(sampler: str) -> None:
    batch = rows(CLS, 7, 8, number=4000)
    objective = tables("electra", Fixed(1), samplers.get(sampler).component, 3, disallow_correct=True)
    drawn = objective(batch, streams(batch)).detection.inputs[:, 1].bincount(minlength=SIZE)
    assert drawn[7] == 0
    others = [t for t in ORDINARY if t != 7]
    shares = objective.generator.guesses[1].detach()[others].softmax(-1)
    assert drawn[others].sum() == 4000
    assert chi_square_p(drawn[others], shares) > SIGNIFICANCE


def test_generator_smoothing_is_that_of_torch_and_metrics_know_nothing_of_it() -> None:
    batch = rows(CLS, 7, 8, 9, number=2)
    objective = tables("electra", Fixed(1, 3, empty=1), Says(5, 6, 5), 4, generator_smoothing=0.3)
    losses = objective(batch, streams(batch))
    logits, originals = objective.generator.guesses[[1, 3] * 2], torch.tensor([7, 9] * 2)
    smooth = F.cross_entropy(logits, originals, label_smoothing=0.3, reduction="sum")
    torch.testing.assert_close(losses.terms["generator"].sum, smooth)
    asked = losses.predictions["generator"]
    plain = asked.loss[asked.valid].sum()
    torch.testing.assert_close(plain, F.cross_entropy(logits, originals, reduction="sum"))
    assert not torch.isclose(smooth, plain, rtol=0.02)


def test_discriminator_smoothing_by_hand() -> None:
    """-log sigmoid(2) = 0.126928 and -log sigmoid(-2) = 2.126928; smoothing 0.2 makes the labels 0.9 and 0.1."""
    batch = rows(CLS, 7)
    objective = tables("electra", Fixed(1), Says(5), 2, discriminator_smoothing=0.2)
    objective.discriminator.scores.data.fill_(2.0)
    term = objective(batch, streams(batch)).terms["discriminator"]
    original, replaced = 0.1 * 0.126928 + 0.9 * 2.126928, 0.9 * 0.126928 + 0.1 * 2.126928
    assert float(term.sum.detach()) == pytest.approx(original + replaced, abs=1e-5)
    assert int(term.count) == 2


def test_masked_only_is_cross_entropy_over_the_masked_tokens() -> None:
    """Replaced or not, each once; nothing is learned of the other tokens, nor of slots that do not count."""
    batch = rows(CLS, 7, 8, 9, SEP, PAD)
    objective = tables("electra_masked_only", Fixed(1, 3, empty=2), Says(5, 9, 6, 6), 6)
    term = objective(batch, streams(batch)).terms["discriminator"]
    logits = torch.stack([objective.discriminator.scores[1, 5], objective.discriminator.scores[3, 9]])
    expected = F.binary_cross_entropy_with_logits(logits, torch.tensor([1.0, 0.0]).double(), reduction="sum")
    torch.testing.assert_close(term.sum, expected)
    assert int(term.count) == 2 == int(objective.counts(batch, streams(batch))["discriminator"])
    reached = gradients(objective, term.sum)["discriminator.scores"].nonzero().tolist()
    assert reached == [[1, 5], [3, 9]]


# mlm and replace_mlm


def everywhere(network: Any, tokens: torch.Tensor, batch: Any) -> torch.Tensor:
    """Logits at every position: more than the objectives ever make."""
    hidden = network.hidden(tokens, batch.mask, batch.segments)
    return network.token_logits(hidden, torch.arange(tokens.shape[1]).expand_as(tokens))


def plain_mlm(network: Any, inputs: torch.Tensor, batch: Any, chosen: torch.Tensor, smoothing: float = 0) -> Any:
    """As it is commonly written: labels of -100 where nothing is predicted, and the mean over the rest."""
    labels = batch.tokens.masked_fill(~chosen, -100)
    return F.cross_entropy(
        everywhere(network, inputs, batch).flatten(0, 1), labels.flatten(), label_smoothing=smoothing
    )


class Chosen:
    """A masking strategy that remembers what it did."""

    def __init__(self) -> None:
        self.strategy = masking_strategies.get("replace_prob").component

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.masked = self.strategy(*arguments, random_prob=0.1, **options)
        self.at = torch.zeros_like(arguments[1]).scatter(1, self.masked.positions, self.masked.valid)
        return self.masked


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_mlm_is_cross_entropy_at_the_masked_tokens(smoothing: float) -> None:
    masking, batch = Chosen(), sentences()
    objective = berts("mlm", masking=masking, smoothing=smoothing).double().train()
    losses = objective(batch, streams(batch))
    expected = plain_mlm(objective.discriminator, masking.masked.inputs, batch, masking.at, smoothing)
    assert int(masking.at.sum()) == 6 * 2  # 15% of 13
    torch.testing.assert_close(total(losses), expected)
    one, two = gradients(objective, total(losses)), gradients(objective, expected)
    assert_close(one, two)
    assert one.keys() == {name for name, _ in objective.named_parameters()}


def test_mlm_has_no_generator_and_draws_nothing() -> None:
    """It is built with None for both, and asks for random numbers to mask with alone."""
    objective, batch = berts("mlm"), sentences()
    given, purposes = streams(batch), []

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
    masking, batch = Chosen(), sentences()
    sampled = torch.randint(5, 30, (6, 3))  # 15% of 20 places: a slot more than tokens to mask
    objective = berts("replace_mlm", "tokens", masking, lambda *_: sampled.flatten(), discriminator_weight=2.0)
    objective = objective.double().train()
    losses = objective(batch, streams(batch))
    masked = masking.masked
    samples = torch.where(masked.valid, sampled, batch.tokens.gather(1, masked.positions))
    replaced = batch.tokens.scatter(1, masked.positions, samples)
    assert ((replaced != batch.tokens) & ~masking.at).sum() == 0 < (replaced != batch.tokens).sum()
    assert not (replaced == MASK).any()
    expected = plain_mlm(objective.generator, masked.inputs, batch, masking.at)
    expected = expected + 2 * plain_mlm(objective.discriminator, replaced, batch, masking.at)
    torch.testing.assert_close(total(losses), expected)
    assert_close(gradients(objective, total(losses)), gradients(objective, expected))


def test_replace_mlm_measures_both_networks() -> None:
    """The second one never sees [MASK]; its metrics are of the same places."""
    batch = rows(CLS, 7, 8, 9, number=2)
    objective = tables("replace_mlm", Fixed(1, 3), Says(5, 9), 4)
    objective.discriminator.guesses.data[1, 7] = 100.0
    first, second = (objective(batch, streams(batch)).predictions[n] for n in ("generator", "discriminator"))
    assert first.hidden.all()
    assert not second.hidden.any()
    assert second.correct.tolist() == [[True, bool(objective.discriminator.guesses[3].argmax() == 9)]] * 2
    assert float(second.loss[0, 0].detach()) == pytest.approx(0, abs=1e-9)
    torch.testing.assert_close(second.loss[0, 1], -objective.discriminator.guesses[3].log_softmax(-1)[9])
