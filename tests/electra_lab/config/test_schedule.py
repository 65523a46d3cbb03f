"""The numbers that schedules give, as the training loop asks for them."""

import math

import pytest

from electra_lab.config.component import Component
from electra_lab.config.schedule import rate_of, rate_problem, value_of
from registry import schedules
from registry.signature import validate


def schedule(name: str, **options: float) -> Component:
    return Component(name, validate(schedules.get(name).schema, options))


def test_a_number_by_progress() -> None:
    linear = schedule("linear", start=2.0, end=1.0, until=0.5)
    assert [value_of(linear)(progress) for progress in (0.0, 0.25, 0.5, 1.0)] == [2.0, 1.5, 1.0, 1.0]
    cosine = schedule("cosine", start=1.0, end=0.0)
    assert [value_of(cosine)(p) for p in (0.0, 1 / 3, 0.5, 1.0)] == pytest.approx([1.0, 0.75, 0.5, 0.0])


def test_a_factor_by_step() -> None:
    linear = schedule("linear", start=1.0, end=0.0)
    assert [rate_of(linear)(step, 5) for step in range(5)] == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])
    assert rate_of(linear)(0, 1) == 1.0
    warmup = schedule("warmup_linear", warmup_steps=2)
    assert [rate_of(warmup)(step, 4) for step in range(4)] == pytest.approx([0.5, 0.75, 0.5, 0.25])


def test_a_factor_that_cannot_lead_the_learning_rate_is_named() -> None:
    assert rate_problem(schedule("linear", start=1.0, end=0.0), 10) is None
    assert rate_problem(schedule("warmup_linear", warmup_steps=10), 10) is None
    reason = rate_problem(schedule("warmup_linear", warmup_steps=11), 10)
    assert "11 steps does not fit into 10 steps." in reason
    assert "to 1." in reason
    assert rate_problem(schedule("linear", start=1.0, end=-1.0, until=1e-9), 2000) is not None
    assert rate_problem(schedule("cosine", start=-0.5, end=1.0), 10).startswith("gives the factor -0.5 at step 0; ")
    assert " -0.252525 at step 25; " in rate_problem(schedule("linear", start=0.0, end=-1.0), 100)
    assert rate_problem(schedule("cosine", start=0.0, end=-1.0), 1) is None
    assert rate_problem(schedule("linear", start=1999.0, end=-1.0), 2000) is not None
    reason = "gives the factor -1 at step 1,999; it must be 0 or more."
    assert rate_problem(schedule("linear", start=1998.0, end=-1.0), 2000) == reason


@pytest.mark.parametrize("number", [math.nan, math.inf, -0.1])
def test_a_number_that_is_not_finite_is_no_factor(number: float) -> None:
    def odd(progress, /):
        """Odd at the end."""
        return number if progress == 1 else 1.0

    with schedules.isolated():
        schedules.register("odd")(odd)
        assert rate_problem(schedule("odd"), 8) == f"gives the factor {number:g} at step 7; it must be 0 or more."
