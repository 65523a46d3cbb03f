"""A straight line."""

from typing import Annotated

from pydantic import Field

from registry import schedules


@schedules.register("linear")
def linear(progress: float, /, *, start: float, end: float, until: Annotated[float, Field(gt=0, le=1)] = 1.0) -> float:
    """From `start` to `end` in equal steps; `until` is the share of training after which it stays at `end`."""
    share = min(progress / until, 1.0)
    return start + (end - start) * share
