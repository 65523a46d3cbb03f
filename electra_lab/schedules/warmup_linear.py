"""The learning rate of google-research/electra."""

from typing import Annotated

from pydantic import Field

from registry import schedules

Steps = Annotated[int, Field(ge=0, le=10**9)]
Share = Annotated[float, Field(ge=0, le=1)]


def warmup_length(steps: int, warmup_steps: int, warmup_share: float | None) -> int:
    """Return the number of warm-up steps, which a share of all steps decides if there is one.

    Raises ValueError if they outlast training.
    """
    if warmup_share is not None:
        warmup_steps = round(warmup_share * steps)
    if warmup_steps > steps:
        reason = f"a warm-up of {warmup_steps:,} steps does not fit into {steps:,} steps."
        raise ValueError(f"{reason} Lower schedules.learning_rate.warmup_steps, for example to {steps // 10}.")
    return warmup_steps


def rising(step: int, warmup: int) -> float:
    """Return the factor of a linear warm-up, whose first step runs at 1/warmup of the rate."""
    return min(1.0, (step + 1) / warmup) if warmup else 1.0


@schedules.register("warmup_linear")
def warmup_linear(
    step: int, steps: int, /, *, warmup_steps: Steps = 10_000, warmup_share: Share | None = None
) -> float:
    """Linear decay to zero times linear warm-up, as in google-research/electra (multiplied, not one after the other).

    The first step runs at 1/warmup_steps of the rate, where the official code wastes it at 0.

    warmup_steps  the steps over which the rate rises; they may not outlast training
    warmup_share  the same as a share of all steps, which then counts instead
    """
    return (1 - step / steps) * rising(step, warmup_length(steps, warmup_steps, warmup_share))
