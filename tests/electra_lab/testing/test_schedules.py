"""The law of schedules bites."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest

from electra_lab.testing import ScheduleContract
from registry import schedules

COUNTER = itertools.count()


def nan(progress, /):
    """No number in the middle."""
    return math.nan if 0.2 < progress < 0.9 else 1.0


def infinite(progress, /):
    """No finite number."""
    return 1e308 * 10


def moody(progress, /):
    """Another number each time."""
    return next(COUNTER)


def negative(step, steps, /):
    """Below zero at the end."""
    return 0.5 - step / steps


def late(step, steps, /):
    """Infinite after some steps."""
    return 1.0 if step < 100 else math.inf


def changing(step, steps, /):
    """Another factor each time."""
    return next(COUNTER)


def short(step, steps, /):
    """Refuses short runs, with a sentence."""
    if steps < 1000:
        raise ValueError("too short")
    return 1.0


def falling(progress, /):
    """May be negative: a number, not a factor."""
    return -progress


def run(schedule: Callable[..., float]) -> None:
    class Suite(ScheduleContract):
        name = schedule.__name__

    with schedules.isolated():
        schedules.register(schedule.__name__)(schedule)
        Suite().test_numbers_are_finite_and_the_same_each_time()


@pytest.mark.parametrize("schedule", [nan, infinite, moody, negative, late, changing], ids=lambda s: s.__name__)
def test_a_mistake_is_found(schedule: Callable[..., float]) -> None:
    with pytest.raises(AssertionError):
        run(schedule)


@pytest.mark.parametrize("schedule", [short, falling], ids=lambda s: s.__name__)
def test_a_refusal_and_a_negative_number_are_lawful(schedule: Callable[..., float]) -> None:
    run(schedule)
