"""Masking as in google-research/electra, with given numbers."""

from __future__ import annotations

import torch

from electra_lab.masking.replace_prob import replace_prob
from electra_lab.testing import MASK
from tests.electra_lab.masking.strategies import Numbers, masked, small

TOKENS = torch.tensor([[5, 6, 7, 8]])
EVERYWHERE = torch.ones(1, 4, dtype=torch.bool)


def test_what_becomes_of_each_position() -> None:
    """Positions by the size of their numbers, then [MASK] below 0.85; the rest stays, as nothing is random."""
    numbers = Numbers([0.4, 0.1, 0.3, 0.2], [0.84, 0.86, 0.0, 0.99], [0.5] * 4)
    chosen = replace_prob(TOKENS, EVERYWHERE, small(), numbers, mask_prob=1.0)
    assert chosen.positions.tolist() == [[0, 2, 3, 1]]
    assert chosen.inputs.tolist() == [[MASK, 6, 7, MASK]]
    assert chosen.valid.all()


def test_fifteen_percent_by_default() -> None:
    tokens = torch.full((3, 100), 7)
    assert masked("replace_prob", tokens, tokens > 0, small()).valid.sum(1).tolist() == [15] * 3
