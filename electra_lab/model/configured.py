"""Masking strategies and samplers with their options, as an objective calls them."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from registry import Entry, Masked, count


class Configured:
    """A component with its options, as an objective calls it.

    function  the component, or a check around it
    options   schedules change some of them
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
