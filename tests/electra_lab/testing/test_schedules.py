"""The law of schedules bites."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest

from electra_lab.testing import ScheduleContract
from registry import schedules

COUNTER = itertools.count()


MISTAKES: dict[str, Callable[..., float]] = {
    "nan": lambda progress, /: math.nan if 0.2 < progress < 0.9 else 1.0,
    "infinite": lambda progress, /: math.inf,
    "moody": lambda progress, /: next(COUNTER),
    "negative": lambda step, steps, /: 0.5 - step / steps,
    "late": lambda step, steps, /: 1.0 if step < 100 else math.inf,
    "changing": lambda step, steps, /: next(COUNTER),
}


def short(step, steps, /):
    if steps < 1000:
        raise ValueError("too short")
    return 1.0


LAWFUL: dict[str, Callable[..., float]] = {"refuses": short, "negative number": lambda progress, /: -progress}


def run(schedule: Callable[..., float]) -> None:
    class Suite(ScheduleContract):
        name = "mine"

    schedule.__doc__ = "A schedule."
    with schedules.isolated():
        schedules.register("mine")(schedule)
        Suite().test_numbers_are_finite_and_the_same_each_time()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str) -> None:
    with pytest.raises(AssertionError):
        run(MISTAKES[mistake])


@pytest.mark.parametrize("kind", LAWFUL)
def test_a_refusal_and_a_negative_number_are_lawful(kind: str) -> None:
    run(LAWFUL[kind])
