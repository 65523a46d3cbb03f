"""The k most likely tokens with given numbers, by hand."""

from __future__ import annotations

import pytest
import torch

from electra_lab.samplers.top_k import top_k
from tests.electra_lab.samplers.given import Given

LOGITS = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()


@pytest.mark.parametrize(
    ("k", "number", "expected"),
    [
        (1, 0.999, 1),
        (2, 0.57, 1),  # 0.4 of 0.7
        (2, 0.58, 3),
        (2, 0.999, 3),
        (3, 0.777, 3),  # 0.7 of 0.9
        (3, 0.779, 2),
        (4, 0.901, 0),
        (99, 0.901, 0),
    ],
)
def test_the_rest_shares_the_probability(k: int, number: float, expected: int) -> None:
    assert top_k(LOGITS.unsqueeze(0), Given(number), k=k).tolist() == [expected]


def test_a_temperature_acts_among_the_best() -> None:
    """Squares of 0.4 and 0.3: 0.16 of 0.25."""
    assert top_k(LOGITS.expand(2, -1), Given(0.639, 0.641), k=2, temperature=0.5).tolist() == [1, 3]
