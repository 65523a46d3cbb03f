"""The learning rate of google-research/electra."""

from typing import Annotated

from pydantic import Field

from registry import schedules


@schedules.register("warmup_linear")
def warmup_linear(
    step: int,
    steps: int,
    /,
    *,
    warmup_steps: Annotated[int, Field(ge=0)] = 10_000,
    warmup_share: Annotated[float, Field(ge=0, le=1)] | None = None,
) -> float:
    """Linear decay to zero times linear warm-up, as in google-research/electra (multiplied, not one after the other).

    The first step runs at 1/warmup_steps of the rate, where the official code wastes it at 0.

    warmup_steps  the steps over which the rate rises; they may not outlast training
    warmup_share  the same as a share of all steps, which then counts instead
    """
    if warmup_share is not None:
        warmup_steps = round(warmup_share * steps)
    if warmup_steps > steps:
        reason = f"a warm-up of {warmup_steps:,} steps does not fit into {steps:,} steps."
        raise ValueError(f"{reason} Lower schedules.learning_rate.warmup_steps.")
    warmup = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
    return (1 - step / steps) * warmup
