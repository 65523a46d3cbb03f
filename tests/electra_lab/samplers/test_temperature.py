"""The inverse of the cumulative distribution with given numbers, by hand."""

from __future__ import annotations

import pytest
import torch

from electra_lab.samplers.temperature import temperature
from tests.electra_lab.samplers.given import Given

LOGITS = torch.tensor([0.5, 0.3, 0.2]).log()


@pytest.mark.parametrize(
    ("number", "expected"), [(0.001, 0), (0.499, 0), (0.501, 1), (0.799, 1), (0.801, 2), (0.9999, 2)]
)
def test_one_number_picks_a_token(number: float, expected: int) -> None:
    assert temperature(LOGITS.unsqueeze(0), Given(number)).tolist() == [expected]
    assert temperature(LOGITS.unsqueeze(0) - 1e4, Given(number)).tolist() == [expected]


@pytest.mark.parametrize(("degree", "border"), [(0.5, 0.25 / 0.38), (2.0, 0.5**0.5 / (0.5**0.5 + 0.3**0.5 + 0.2**0.5))])
def test_a_temperature_sharpens_or_flattens(degree: float, border: float) -> None:
    """Probabilities to the power of 1 / temperature: 0.25 of 0.25 + 0.09 + 0.04 at a half."""
    logits = LOGITS.expand(2, -1)
    assert temperature(logits, Given(border - 1e-3, border + 1e-3), temperature=degree).tolist() == [0, 1]
