"""A straight line."""

from typing import Annotated

from pydantic import Field

from registry import schedules


@schedules.register("linear")
def linear(
    progress: float,
    /,
    *,
    start: float,
    end: float,
    until: Annotated[float, Field(gt=0, le=1)] = 1.0,
    stages: Annotated[int, Field(ge=2, le=10**9)] | None = None,
) -> float:
    """From `start` to `end` in equal steps; `until` is the share of training after which it stays at `end`.

    stages  number of equal parts of this share; the value changes only at their beginnings, from `start` in the first
            to `end` in the last. With one stage per epoch, it changes once per epoch
    """
    share = min(progress / until, 1.0)
    if stages is not None:
        share = min(int(share * stages), stages - 1) / (stages - 1)
    return start + (end - start) * share
