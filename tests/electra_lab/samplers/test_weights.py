"""Which token a number falls to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from electra_lab.model.draws import inverse_cdf
from registry import samplers
from tests.electra_lab.samplers.given import Given


@pytest.mark.parametrize(("name", "options"), [("temperature", {}), ("top_k", {"k": 30_000}), ("nucleus", {"p": 1.0})])
def test_the_tail_is_told_apart(name: str, options: dict[str, Any]) -> None:
    """Tokens of 1e-8 to 3e-8 each, at sums near 1: float32 has steps of 6e-8 there, and would lose most of them."""
    numbers = [1 - share * 2.0**-24 for share in range(1, 9_001, 300)]
    logits = torch.linspace(-17.2, -18.2, 30_000)
    logits[0] = 0
    sums = np.cumsum(logits.softmax(-1).double().numpy())
    expected = np.searchsorted(sums, np.array(numbers) * sums[-1], side="right")
    found = samplers.get(name).component(logits.expand(len(numbers), -1), Given(*numbers), **options)
    assert found.tolist() == expected.tolist()


def test_a_token_without_probability_is_never_drawn() -> None:
    """Not even by a number that rounding, or a sum in parallel, makes as large as the whole; rows need not sum to 1."""
    weights = torch.tensor([[0.0, 3.0, 0.0, 1.0, 0.0]], dtype=torch.float64).expand(4, -1)
    assert inverse_cdf(weights, torch.tensor([[2.0**-24], [0.7], [0.8], [1.0]])).tolist() == [[1], [1], [3], [1]]
