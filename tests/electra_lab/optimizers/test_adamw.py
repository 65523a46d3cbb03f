"""AdamW with the lab's options: worked out by hand, and against torch's own."""

import math

import pytest
import torch
from torch import nn

from electra_lab.optimizers.adamw import AdamW


def test_two_steps_by_hand() -> None:
    """A matrix with decay and a vector without. The first step is the rate, whatever the gradient's size."""
    matrix, vector = nn.Parameter(torch.tensor([[2.0, -1.0]])), nn.Parameter(torch.tensor([3.0]))
    optimizer = AdamW([("m", matrix), ("v", vector)], 0.1, weight_decay=0.5, betas=(0.9, 0.99), epsilon=1e-6)
    matrix.grad, vector.grad = torch.tensor([[4.0, -0.5]]), torch.tensor([1000.0])
    optimizer.step()
    # Moments 0.1 g and 0.01 g^2, corrected by 0.1 and 0.01: g / |g|. The matrix is first shrunk by 1 - 0.1 * 0.5.
    assert matrix.tolist()[0] == pytest.approx([2 * 0.95 - 0.1, -1 * 0.95 + 0.1], abs=1e-6)
    assert vector.tolist() == pytest.approx([2.9], abs=1e-6)
    matrix.grad, vector.grad = torch.zeros(1, 2), torch.tensor([0.0])
    optimizer.step()
    # Moments 0.09 g and 0.0099 g^2, corrected by 0.19 and 0.0199.
    size = 0.1 * (0.09 / 0.19) / math.sqrt(0.0099 / 0.0199)
    assert matrix.tolist()[0] == pytest.approx([1.8 * 0.95 - size, -0.85 * 0.95 + size], abs=1e-6)
    assert vector.tolist() == pytest.approx([2.9 - size], abs=1e-6)


def test_epsilon_is_added_to_the_root() -> None:
    weight = nn.Parameter(torch.tensor([[1.0]]))
    optimizer = AdamW([("w", weight)], 0.5, weight_decay=0.0, epsilon=3.0)
    weight.grad = torch.tensor([[1.0]])
    optimizer.step()
    assert weight.item() == pytest.approx(1 - 0.5 * 1 / (1 + 3), abs=1e-6)


def test_the_defaults_are_those_of_google_research() -> None:
    group = AdamW([("w", nn.Parameter(torch.ones(2, 2)))], 1e-3).param_groups[0]
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (1e-3, (0.9, 0.999), 1e-6, 0.01)
    assert group["fused"], "a step that is not finite is skipped on the device by fused kernels alone"
