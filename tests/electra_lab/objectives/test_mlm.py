"""Masked language modelling against the way in which it is commonly written."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.electra_lab.objectives.tiny import (
    Chosen,
    assert_close,
    berts,
    gradients,
    plain_mlm,
    sentences,
    streams,
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
