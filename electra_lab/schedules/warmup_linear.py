"""The learning rate of google-research/electra."""

from electra_lab.schedules._warmup import Share, Steps, rising, warmup_length
from registry import schedules


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
