"""A schedule."""

from typing import Annotated

from pydantic import Field

from registry import schedules


@schedules.register("my_schedule")
def my_schedule(progress: float, /, *, start: float, end: float, power: Annotated[float, Field(gt=0)] = 2.0) -> float:
    """From `start` to `end` along progress^power; `progress` is 0 at the first step and 1 at the last."""
    return start + (end - start) * progress**power
