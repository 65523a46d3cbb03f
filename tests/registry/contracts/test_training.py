"""How many tokens are masked."""

from fractions import Fraction
from math import ceil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from registry import Metric, count


@pytest.mark.parametrize(
    ("mask_prob", "tokens", "masked"),
    [(0.15, 0, 0), (0.15, 1, 1), (0.15, 6, 1), (0.15, 7, 2), (0.15, 20, 3), (0.15, 100, 15), (0.15, 101, 16),
     (0.07, 100, 7), (0.3, 10, 3), (0.7, 10, 7), (1.0, 13, 13)],
)  # fmt: skip
def test_by_hand(mask_prob: float, tokens: int, masked: int) -> None:
    """0.15 * 100 is above 15 in float32, and 0.07 * 100 is above 7 in doubles."""
    assert count(mask_prob, tokens) == masked
    tensor = count(torch.tensor(mask_prob, dtype=torch.float64), torch.tensor([tokens]))
    assert (tensor.tolist(), tensor.dtype) == ([masked], torch.int64)


@settings(deadline=None)
@given(st.integers(1, 10_000), st.integers(0, 100_000))
def test_a_share_of_ten_thousandths_is_rounded_up_exactly(ten_thousandths: int, tokens: int) -> None:
    exact = ceil(Fraction(ten_thousandths, 10_000) * tokens)
    assert count(ten_thousandths / 10_000, tokens) == exact
    assert count(ten_thousandths / 10_000, torch.tensor(tokens)).item() == exact


def test_the_direction_in_words() -> None:
    assert Metric().direction == "higher is better"
    assert Metric(higher_is_better=False).direction == "lower is better"
    assert Metric(higher_is_better=False, comparable=False).direction == "on each run's own task"
