"""Every step of each schedule: by hand, against TensorFlow's formula, and against transformers."""

import math
import re
from itertools import pairwise
from typing import Any

import pytest
import torch
from transformers import get_wsd_schedule

from registry import schedules


def schedule(name: str) -> Any:
    return schedules.get(name).component


def rates(name: str, steps: int, **options: Any) -> list[float]:
    return [schedule(name)(step, steps, **options) for step in range(steps)]


@pytest.mark.parametrize(
    ("name", "options", "numbers"),
    [  # at 0, 1/3, 1/2, 2/3 and 1: (1 + cos) / 2 at 0, 60, 90, 120 and 180 degrees
        ("cosine", {"start": 1.0, "end": 0.0}, [1.0, 0.75, 0.5, 0.25, 0.0]),
        ("cosine", {"start": 2.0, "end": 6.0}, [2.0, 3.0, 4.0, 5.0, 6.0]),
        ("cosine", {"start": 1.0, "end": 0.0, "until": 0.5}, [1.0, 0.25, 0.0, 0.0, 0.0]),
        ("linear", {"start": 2.0, "end": 0.5}, [2.0, 1.5, 1.25, 1.0, 0.5]),
        ("linear", {"start": 0.0, "end": 3.0, "until": 2 / 3}, [0.0, 1.5, 2.25, 3.0, 3.0]),
        ("linear", {"start": 1.0, "end": 4.0, "stages": 4}, [1.0, 2.0, 3.0, 3.0, 4.0]),
        ("linear", {"start": 1.0, "end": 4.0, "stages": 2, "until": 2 / 3}, [1.0, 4.0, 4.0, 4.0, 4.0]),
    ],
)
def test_numbers_by_hand(name: str, options: dict[str, float], numbers: list[float]) -> None:
    """With `until` they stay at the last value."""
    found = [schedule(name)(progress, **options) for progress in (0, 1 / 3, 1 / 2, 2 / 3, 1)]
    assert found == pytest.approx(numbers, abs=1e-15)


@pytest.mark.parametrize(("start", "end", "rate"), [(2.0, 1.0, 5.0), (-1.0, 3.0, 0.3), (0.5, 0.5, 2.0)])
def test_exponential_loses_the_same_share_of_its_distance_in_equal_times(start: float, end: float, rate: float) -> None:
    """It begins at `start` and does not reach `end`: exp(-rate) of the distance remains."""
    found = [schedule("exponential")(step / 10, start=start, end=end, rate=rate) for step in range(11)]
    assert found[0] == start
    distances = [number - end for number in found]
    for before, after in pairwise(distances):
        assert after == pytest.approx(before * math.exp(-rate / 10), abs=1e-12)
    assert distances[-1] == pytest.approx((start - end) / math.e**rate, abs=1e-12)


@pytest.mark.parametrize(("epochs", "steps"), [(5, 50), (5, 5), (3, 12), (7, 7_000)])
def test_stages_are_epochs(epochs: int, steps: int) -> None:
    """All steps of an epoch have the same number; for five epochs, those of alibaba/self-augmentation-strategy."""
    stages = {"start": 50.0, "end": 200.0, "stages": epochs}
    found = [schedule("linear")(step / (steps - 1), **stages) for step in range(steps)]
    rates = [50 + 150 * epoch / (epochs - 1) for epoch in range(epochs)]
    assert found == pytest.approx([number for number in rates for _ in range(steps // epochs)])
    assert epochs != 5 or rates == [50, 87.5, 125, 162.5, 200]


@pytest.mark.parametrize(
    ("name", "steps", "options", "numbers"),
    [
        ("constant", 4, {}, [1.0, 1.0, 1.0, 1.0]),
        ("constant", 6, {"warmup_steps": 4}, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]),
        ("constant", 4, {"warmup_steps": 4}, [0.25, 0.5, 0.75, 1.0]),
        ("constant", 4, {"warmup_steps": 99, "warmup_share": 0.4}, [0.5, 1.0, 1.0, 1.0]),
        ("constant", 2, {"warmup_steps": 2, "warmup_share": 0.0}, [1.0, 1.0]),
        # The decay begins with the run, so that the peak of 1 is never reached.
        ("warmup_linear", 10, {"warmup_steps": 5}, [0.2, 0.36, 0.48, 0.56, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]),
        ("warmup_linear", 4, {"warmup_steps": 0}, [1.0, 0.75, 0.5, 0.25]),
        ("warmup_stable_decay", 10, {"warmup_steps": 2, "decay_steps": 4, "end": 0.2},
         [0.5, 1, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4]),
        ("warmup_stable_decay", 5, {"warmup_steps": 0, "decay_steps": 4, "shape": "1-sqrt"},
         [1, 1, 0.5, 1 - 0.5**0.5, 1 - 0.75**0.5]),
    ],
)  # fmt: skip
def test_rates_by_hand(name: str, steps: int, options: dict[str, Any], numbers: list[float]) -> None:
    assert rates(name, steps, **options) == pytest.approx(numbers)


@pytest.mark.parametrize(("steps", "warmup"), [(20, 6), (20, 20), (20, 1), (1, 1), (7, 3)])
def test_warmup_linear_is_the_official_rate_one_step_ahead(steps: int, warmup: int) -> None:
    """tf.train.polynomial_decay to zero times the factor of optimization.py, which is 0 at its first step."""
    official = [(1 - step / steps) * min(1.0, (step + 1) / warmup) for step in range(steps)]
    assert rates("warmup_linear", steps, warmup_steps=warmup) == pytest.approx(official, abs=1e-15)


@pytest.mark.parametrize("end", [0.0, 0.1])
@pytest.mark.parametrize("shape", ["linear", "1-sqrt", "cosine"])
@pytest.mark.parametrize(("steps", "warmup", "decay"), [(20, 4, 6), (20, 0, 20), (9, 3, 6), (5, 2, 1), (10, 4, 0)])
def test_warmup_stable_decay_is_transformers(steps: int, warmup: int, decay: int, shape: str, end: float) -> None:
    """Except its warm-up, which rises from `end` and wastes a step at 0."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    theirs = get_wsd_schedule(optimizer, 0, decay, steps, decay_type=shape, min_lr_ratio=end).lr_lambdas[0]
    expected = [theirs(step) * (min(1.0, (step + 1) / warmup) if warmup else 1.0) for step in range(steps)]
    found = rates("warmup_stable_decay", steps, warmup_steps=warmup, decay_steps=decay, shape=shape, end=end)
    assert found == pytest.approx(expected)
    assert min(found) > 0, "a step is wasted"
    assert found[warmup : steps - decay] == [1.0] * (steps - decay - warmup)


@pytest.mark.parametrize(
    ("name", "given", "same"),
    [
        ("warmup_linear", {"warmup_share": 0.3}, {"warmup_steps": 6}),
        ("warmup_linear", {"warmup_share": 0.01}, {"warmup_steps": 0}),
        ("warmup_linear", {"warmup_share": 0.06}, {"warmup_steps": 1}),
        ("warmup_linear", {"warmup_share": 1.0}, {"warmup_steps": 20}),
        ("warmup_stable_decay", {}, {"decay_steps": 2}),
        ("warmup_stable_decay", {"decay_share": 0.33}, {"decay_steps": 7}),
        ("warmup_stable_decay", {"decay_share": 0.9, "decay_steps": 3}, {"decay_steps": 3}),
        ("warmup_stable_decay", {"decay_share": 0.9, "decay_steps": 0}, {"decay_steps": 0}),
        ("warmup_stable_decay", {"warmup_share": 0.3}, {"warmup_steps": 6, "decay_steps": 2}),
        ("warmup_stable_decay", {"warmup_share": 0.0, "warmup_steps": 5}, {"warmup_steps": 0, "decay_steps": 2}),
    ],
)
def test_shares_of_the_steps(name: str, given: dict[str, Any], same: dict[str, Any]) -> None:
    assert rates(name, 20, **{"warmup_steps": 4, **given}) == rates(name, 20, **{"warmup_steps": 4, **same})


@pytest.mark.parametrize("step", [0, 2])
@pytest.mark.parametrize(
    ("name", "steps", "options", "says"),
    [
        ("constant", 3, {"warmup_steps": 4}, "a warm-up of 4 steps does not fit into 3 steps."),
        ("warmup_linear", 3, {"warmup_steps": 4}, "a warm-up of 4 steps does not fit into 3 steps."),
        ("warmup_linear", 1500, {}, "a warm-up of 10,000 steps does not fit into 1,500 steps."),
        ("warmup_stable_decay", 1500, {}, "a warm-up of 10,000 steps does not fit into 1,500 steps."),
        ("warmup_stable_decay", 10, {"warmup_steps": 6, "decay_steps": 5},
         "a warm-up of 6 steps and a decay of 5 do not fit into 10 steps."),
        ("warmup_stable_decay", 10, {"warmup_share": 0.6, "decay_share": 0.6}, "do not fit into 10 steps."),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(name: str, steps: int, options: dict[str, Any], says: str, step: int) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        schedule(name)(step, steps, **options)
