"""Half a wave of a cosine."""

import math
from typing import Annotated

from pydantic import Field

from registry import schedules


@schedules.register("cosine")
def cosine(progress: float, /, *, start: float, end: float, until: Annotated[float, Field(gt=0, le=1)] = 1.0) -> float:
    """From `start` to `end`, slow at both ends (Loshchilov and Hutter 2017); after the share `until` it stays there."""
    share = min(progress / until, 1.0)
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2
