"""The values of schedules."""

import math
from collections.abc import Callable
from numbers import Real

from electra_lab.config.component import Component
from registry import schedules, using


def value_of(schedule: Component) -> Callable[..., float]:
    """Return the function from the arguments of the schedule, such as a progress of 0 to 1, to the number."""
    entry, options = schedules.get(schedule.type), schedule.keywords()

    def number(*progress: float) -> float:
        with using(entry):
            if isinstance(found := entry.component(*progress, **options), Real):
                return found
            raise TypeError(f"it returned {found!r:.80}, must be a number.")

    return number


def rate_of(schedule: Component) -> Callable[[int, int], float]:
    """Return the function from a step, which counts from 0, and the number of steps to the factor of the learning rate.

    It may raise ValueError.
    """
    factor, by_progress = value_of(schedule), schedules.get(schedule.type).lead == ("progress",)
    return (lambda step, steps: factor(step / max(steps - 1, 1))) if by_progress else factor


def rate_problem(schedule: Component, steps: int) -> str | None:
    """Return the reason why a schedule cannot be used for the learning rate of `steps` steps, if there is one."""
    rate = rate_of(schedule)
    try:
        for step in sorted({0, steps // 4, steps // 2, 3 * steps // 4, steps - 1}):
            factor = rate(step, steps)
            if not (math.isfinite(factor) and factor >= 0):
                return f"gives the factor {factor:g} at step {step:,}; it must be 0 or more."
    except ValueError as error:
        return str(error)
    return None
