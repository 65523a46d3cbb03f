"""Numbers of components that change from step to step; masking strategies and samplers with their options."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from registry import Entry, Masked, count


@dataclass(frozen=True)
class Number:
    """`at(progress)` returns the number for a progress from 0 to 1; `put` passes it to its component.

    key  name in the config, such as sampler.temperature
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
        self.tensors = [torch.zeros((), dtype=torch.float64) for _ in numbers]

    def to(self, device: torch.device) -> None:
        """Move the tensors; without dimensions, they take part in arithmetic as Python's numbers do.

        The host reads the numbers of `train`.
        """
        for place, number in enumerate(self.numbers):
            if not number.key.startswith("train."):
                self.tensors[place] = self.tensors[place].to(device)

    def at_step(self, step: int) -> None:
        for number, tensor in zip(self.numbers, self.tensors, strict=True):
            number.put(tensor.fill_(number.at(self._progress(step))))

    def values(self, step: int) -> dict[str, float]:
        """Return the numbers of a step by their keys, for its record."""
        return {number.key: float(number.at(self._progress(step))) for number in self.numbers}

    def _progress(self, step: int) -> float:
        return min(step / max(self.steps - 1, 1), 1.0)

    def at_end(self) -> None:
        self.at_step(self.steps)


class Configured:
    """A component with its options, as an objective calls it.

    function  component, or a check around it
    options   keyword arguments, some of which schedules change
    """

    def __init__(self, entry: Entry[Any], **options: Any) -> None:
        self.entry, self.options = entry, options
        self.function: Callable[..., Any] = entry.component

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments, **self.options)


class FixedSlots(Configured):
    """A masking strategy whose rows always have K = count(T) slots, whatever mask_prob a schedule gives."""

    def __init__(self, entry: Entry[Any], largest: float | None = None, **options: Any) -> None:
        """`largest` is the largest mask_prob of a schedule, which decides K."""
        super().__init__(entry, **options)
        self.largest: float = options["mask_prob"] if largest is None else largest

    def __call__(self, tokens: Int[Tensor, "B T"], *others: Any) -> Masked:
        now = self.options["mask_prob"]
        now = now.clamp(max=self.largest) if isinstance(now, Tensor) else min(now, self.largest)
        masked: Masked = self.function(tokens, *others, **{**self.options, "mask_prob": now})
        spare = count(self.largest, tokens.shape[1]) - masked.positions.shape[1]
        if not spare:
            return masked
        # A negative number cuts slots, of which none is valid.
        return Masked(masked.inputs, F.pad(masked.positions, (0, spare)), F.pad(masked.valid, (0, spare)))
