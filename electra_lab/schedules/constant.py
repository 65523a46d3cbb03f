"""A constant learning rate."""

from electra_lab.schedules.warmup_linear import Share, Steps, rising, warmup_length
from registry import schedules


@schedules.register("constant")
def constant(step: int, steps: int, /, *, warmup_steps: Steps = 0, warmup_share: Share | None = None) -> float:
    """The full learning rate at every step, after a linear warm-up if there is one.

    warmup_steps  the steps over which the rate rises; they may not outlast training
    warmup_share  the same as a share of all steps, which then counts instead
    """
    return rising(step, warmup_length(steps, warmup_steps, warmup_share))
