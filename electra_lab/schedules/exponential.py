"""An exponential approach."""

import math
from typing import Annotated

from pydantic import Field

from registry import schedules


@schedules.register("exponential")
def exponential(progress: float, /, *, start: float, end: float, rate: Annotated[float, Field(gt=0, le=1e6)]) -> float:
    """From `start` towards `end`, fast at first: the distance to `end` shrinks by the same factor in equal times.

    The number is end + (start - end) * exp(-rate * progress), so that exp(-rate) of the distance is left at the last
    step: 0.7% at a rate of 5. `end` itself is not reached.

    rate  how often the distance shrinks by the factor e (2.718) over the whole training
    """
    return end + (start - end) * math.exp(-rate * progress)
