"""Numbers of components that change while training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Number:
    """`at(progress)` gives the number for a progress from 0 to 1; `put` hands it to its component."""

    at: Callable[[float], float]
    put: Callable[[Tensor], None]


class Scheduled(nn.Module):
    """Hands every number to its component before each step, as a tensor, so that compiled code is not compiled anew.

    The first step has progress 0, the last 1. Evaluation always has the numbers of the end: it must measure the same
    thing whenever it comes.
    """

    def __init__(self, numbers: list[Number], steps: int) -> None:
        super().__init__()
        self.numbers, self.steps = numbers, steps
        self.progress = 0.0

    def at_step(self, seed: int, step: int) -> None:
        self.progress = min(step / max(self.steps - 1, 1), 1.0)
        self._put(self.progress)

    def train(self, mode: bool = True) -> Scheduled:
        super().train(mode)
        self._put(self.progress if mode else 1.0)
        return self

    def _put(self, progress: float) -> None:
        for number in self.numbers:
            # Of no dimension and on the CPU: it takes part in arithmetic on any device without a copy that waits.
            number.put(torch.tensor(number.at(progress), dtype=torch.float64))
