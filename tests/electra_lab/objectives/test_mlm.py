"""Losses of masked tokens alone: mlm, replace_mlm and electra_masked_only, as they are commonly written and by hand."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from electra_lab.testing import CLS, MASK, PAD, SEP
from tests.electra_lab.objectives.tiny import (  # fmt: skip
    Chosen,
    Fixed,
    Says,
    assert_close,
    berts,
    gradients,
    plain_mlm,
    rows,
    sentences,
    streams,
    tables,
    total,
)


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
    batch = rows(CLS, 7, 8, 9, number=2)
    objective = tables("replace_mlm", Fixed(1, 3), Says(5, 9), 4)
    objective.discriminator.guesses.data[1, 7] = 100.0
    first, second = (objective(batch, streams(batch)).predictions[n] for n in ("generator", "discriminator"))
    assert first.saw_mask.all()
    assert not second.saw_mask.any()
    assert second.correct.tolist() == [[True, bool(objective.discriminator.guesses[3].argmax() == 9)]] * 2
    assert float(second.loss[0, 0].detach()) == pytest.approx(0, abs=1e-9)
    torch.testing.assert_close(second.loss[0, 1], -objective.discriminator.guesses[3].log_softmax(-1)[9])


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
