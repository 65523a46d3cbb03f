"""Schedules."""

from typing import Any, Protocol


class Schedule(Protocol):
    """A number that changes during training, registered as a function of one of two kinds.

    schedule(progress, /, *, <options>)     any number; `progress` goes from 0 at the first step to 1 at the last
    schedule(step, steps, /, *, <options>)  a factor of train.learning_rate; `step` counts from 0. Raises ValueError if
                                            its options do not fit the number of steps
    """

    def __call__(self, *args: Any, **options: Any) -> float: ...
