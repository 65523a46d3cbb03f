"""Numbers of components that change during training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Number:
    """`at(progress)` returns the number for a progress from 0 to 1; `put` passes it to its component."""

    at: Callable[[float], float]
    put: Callable[[Tensor], None]


class Schedules:
    """Pass every number to its component before each step, as a tensor, so that compiled code is not compiled again.

    The first step has progress 0, the last 1. Evaluation always uses the final numbers: it must measure the same thing
    at every step.
    """

    def __init__(self, numbers: Sequence[Number], steps: int) -> None:
        self.numbers, self.steps = numbers, steps

    def at_step(self, step: int) -> None:
        progress = min(step / max(self.steps - 1, 1), 1.0)
        for number in self.numbers:
            # Without dimensions and on the CPU: it takes part in arithmetic on any device without a copy that waits.
            number.put(torch.tensor(number.at(progress), dtype=torch.float64))

    def at_end(self) -> None:
        self.at_step(self.steps)
