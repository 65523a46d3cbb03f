"""Masking as in BERT, with given numbers."""

from __future__ import annotations

import torch

from electra_lab.masking.random_token import random_token
from electra_lab.testing import MASK
from tests.electra_lab.masking.strategies import Numbers, small

TOKENS = torch.tensor([[5, 6, 7, 8]])
EVERYWHERE = torch.ones(1, 4, dtype=torch.bool)


def test_what_becomes_of_each_position() -> None:
    """[MASK] below 0.8, a random token below 0.9, the token itself above."""
    numbers = Numbers([0.4, 0.3, 0.2, 0.1], [0.79, 0.81, 0.89, 0.91], [0.0, 0.0, 0.99, 0.5])
    masked = random_token(TOKENS, EVERYWHERE, small(), numbers, mask_prob=1.0)
    assert masked.positions.tolist() == [[0, 1, 2, 3]]
    ordinary = small().ordinary_ids.tolist()
    assert masked.inputs.tolist() == [[MASK, ordinary[0], ordinary[-1], 8]]


def test_shares_are_options() -> None:
    numbers = Numbers([0.4, 0.3, 0.2, 0.1], [0.29, 0.31, 0.49, 0.51], [0.0] * 4)
    masked = random_token(TOKENS, EVERYWHERE, small(), numbers, mask_prob=1.0, replace_prob=0.3, random_prob=0.2)
    assert masked.inputs.tolist() == [[MASK, 1, 1, 8]]
