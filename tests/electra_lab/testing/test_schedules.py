"""The law of schedules finds mistakes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import nullcontext

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


@pytest.mark.parametrize("name", [*MISTAKES, *LAWFUL])
def test_a_mistake_is_found(name: str) -> None:
    """A refusal and a negative number are lawful."""
    schedule = (MISTAKES | LAWFUL)[name]
    schedule.__doc__ = "A schedule."
    with schedules.isolated(), pytest.raises(AssertionError) if name in MISTAKES else nullcontext():
        schedules.register("mine")(schedule)
        type("Suite", (ScheduleContract,), {"name": "mine"})().test_numbers_are_finite_and_the_same_each_time()
