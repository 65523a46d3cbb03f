"""Numbers of components that change during training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Number:
    """`at(progress)` returns the number for a progress from 0 to 1; `put` passes it to its component.

    key  its place in the config, such as sampler.temperature
    """

    at: Callable[[float], float]
    put: Callable[[Tensor], None]
    key: str = ""


class Schedules:
    """Pass every number to its component before each step, as a tensor, so that compiled code is not compiled again.

    The first step has progress 0, the last 1. Evaluation always uses the final numbers: it must measure the same thing
    at every step.
    """

    def __init__(self, numbers: Sequence[Number], steps: int) -> None:
        self.numbers, self.steps = numbers, steps

    def at_step(self, step: int) -> None:
        for number in self.numbers:
            # Without dimensions and on the CPU: it takes part in arithmetic on any device without a copy that waits.
            number.put(torch.tensor(number.at(self._progress(step)), dtype=torch.float64))

    def values(self, step: int) -> dict[str, float]:
        """Return the numbers of a step by their keys, for its record."""
        return {number.key: float(number.at(self._progress(step))) for number in self.numbers}

    def _progress(self, step: int) -> float:
        return min(step / max(self.steps - 1, 1), 1.0)

    def at_end(self) -> None:
        self.at_step(self.steps)
