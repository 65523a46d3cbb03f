"""Gumbel-max with given numbers, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from electra_lab.samplers.gumbel import gumbel
from tests.electra_lab.samplers.given import Given


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, 1), (0.25, 0), (4.0, 2)])
def test_the_largest_sum_of_logit_and_noise_wins(temperature: float, expected: int) -> None:
    """Noise of 0, 1.5 and 2 on logits of 2, 1 and 0: 2, 2.5 and 2; divided by 1/4, 8 5.5 2; by 4, 0.5 1.75 2."""
    numbers = [math.exp(-math.exp(-noise)) for noise in (0.0, 1.5, 2.0)]
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    assert gumbel(logits, Given(*numbers), temperature=temperature).tolist() == [expected]
    assert gumbel(logits + 1e4, Given(*numbers), temperature=temperature).tolist() == [expected]


def test_each_token_has_a_number_of_its_own() -> None:
    asked: list[tuple[int, ...]] = []

    class Spy(Given):
        def uniform(self, rows: int, *shape: int) -> torch.Tensor:
            asked.append((rows, *shape))
            return super().uniform(rows, *shape)

    drawn = gumbel(torch.zeros(2, 3), Spy(0.1, 0.9, 0.2, 0.3, 0.2, 0.8))
    assert asked == [(2, 3)]
    assert drawn.tolist() == [1, 2]


def test_logits_of_minus_infinity_and_extreme_numbers() -> None:
    """The smallest and the largest number that there are give finite noise."""
    least, most = 2.0**-24, 1 - 2.0**-24
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf]])
    assert gumbel(logits, Given(most, least, most)).tolist() == [1]
    assert gumbel(torch.zeros(1, 3), Given(least, least, most)).tolist() == [2]
