"""AdamW over every trainable parameter, each in exactly one group, and the learning rate of a step."""

from __future__ import annotations

from torch import nn
from torch.optim import AdamW


def make_optimizer(
    module: nn.Module, learning_rate: float, betas: tuple[float, float], epsilon: float, weight_decay: float
) -> AdamW:
    """No decay on parameters with fewer than two dimensions: biases, gains.

    torch's AdamW corrects the bias of its averages; google-research/electra's does not. The difference is gone
    after some thousand steps and hidden under the warm-up before that.
    """
    # named_parameters gives a shared parameter once.
    parameters = [p for _, p in module.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    # Fused: the one implementation that can skip a step on a flag that lives on the device (`found_inf`).
    return AdamW([g for g in groups if g["params"]], lr=learning_rate, betas=betas, eps=epsilon, fused=True)


def learning_rate_at(step: int, steps: int, peak: float, warmup_steps: int) -> float:
    """Linear decay to zero times linear warm-up, as in google-research/electra (multiplied, not one after the other).

    `step` counts from 0. The first step runs at 1/warmup_steps of the rate, where the official code wastes it at 0.
    """
    warmup = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
    return peak * (1 - step / steps) * warmup
