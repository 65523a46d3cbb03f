"""The most likely token."""

from __future__ import annotations

from typing import Any

import torch

from electra_lab.samplers.argmax import argmax


def test_the_largest_logit_wins_and_no_number_is_drawn() -> None:
    nobody: Any = None
    logits = torch.tensor([[1.0, 1.001, 0.0], [1.001, 1.0, -5.0], [-3.0, -2.0, -1.0], [-torch.inf, -torch.inf, -9.0]])
    assert argmax(logits, nobody).tolist() == [1, 0, 2, 2]
