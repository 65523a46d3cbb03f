"""Warm-up, a long constant stretch, decay."""

import math
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from electra_lab.schedules.warmup_linear import Share, Steps, rising, warmup_length
from registry import schedules

SHAPES: dict[str, Callable[[float], float]] = {  # from 1 to 0 while the argument goes from 0 to 1
    "linear": lambda done: 1 - done,
    "1-sqrt": lambda done: 1 - math.sqrt(done),
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
}


@schedules.register("warmup_stable_decay")
def warmup_stable_decay(
    step: int,
    steps: int,
    /,
    *,
    warmup_steps: Steps = 10_000,
    warmup_share: Share | None = None,
    decay_share: Share = 0.1,
    decay_steps: Steps | None = None,
    shape: Literal["linear", "1-sqrt", "cosine"] = "linear",
    end: Annotated[float, Field(ge=0, le=1)] = 0.0,
) -> float:
    """The full learning rate between a linear warm-up and a short decay (Hu et al. 2024, MiniCPM).

    The decay begins at the full rate and would reach `end` one step after the last, so that no step is wasted at 0.

    warmup_steps  the steps over which the rate rises; warm-up and decay together may not outlast training
    warmup_share  the same as a share of all steps, which then counts instead
    decay_share   the share of all steps over which the rate falls
    decay_steps   the same as a number of steps, which then counts instead
    shape         of the decay; 1-sqrt falls fastest at first (Hägele et al. 2024)
    end           the factor that the rate falls to
    """
    warmup = warmup_length(steps, warmup_steps, warmup_share)
    decay = round(decay_share * steps) if decay_steps is None else decay_steps
    if warmup + decay > steps:
        reason = f"a warm-up of {warmup:,} steps and a decay of {decay:,} do not fit into {steps:,} steps."
        raise ValueError(f"{reason} Lower schedules.learning_rate.warmup_steps or decay_steps, or their shares.")
    falling = step - (steps - decay)
    return rising(step, warmup) if falling < 0 else end + (1 - end) * SHAPES[shape](falling / decay)
