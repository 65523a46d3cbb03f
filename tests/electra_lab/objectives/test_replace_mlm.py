"""Masked language modelling on samples: both losses, and what is measured."""

from __future__ import annotations

import pytest
import torch

from electra_lab.testing import CLS, MASK
from tests.electra_lab.objectives.tiny import (
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
    assert first.saw_mask.all()
    assert not second.saw_mask.any()
    assert second.correct.tolist() == [[True, bool(objective.discriminator.guesses[3].argmax() == 9)]] * 2
    assert float(second.loss[0, 0].detach()) == pytest.approx(0, abs=1e-9)
    torch.testing.assert_close(second.loss[0, 1], -objective.discriminator.guesses[3].log_softmax(-1)[9])
