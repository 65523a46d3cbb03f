"""The training of all peers: a model with dropout, on random numbers that depend only on the seed."""

from __future__ import annotations

import os
import time

import torch
from torch import nn

STEPS, EVERY, KEEP, ROWS = 12, 3, 2, 4


class Tiny(nn.Module):
    """Predict a class of tokens. Returns (loss, logits), as transformers' Trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Embedding(50, 16), nn.Dropout(0.1), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5))

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        time.sleep(float(os.environ.get("SECONDS_A_STEP", "0")))
        logits = self.body(tokens).mean(1)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def rows() -> list[dict[str, torch.Tensor]]:
    random = torch.Generator().manual_seed(1)
    tokens, labels = torch.randint(50, (40, 8), generator=random), torch.randint(5, (40,), generator=random)
    return [{"tokens": one, "labels": label} for one, label in zip(tokens, labels, strict=True)]
