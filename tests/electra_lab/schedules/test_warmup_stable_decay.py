"""Warm-up, constant, decay: against transformers' get_wsd_schedule."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch
from transformers import get_wsd_schedule

from electra_lab.schedules.warmup_stable_decay import SHAPES, warmup_stable_decay


def theirs(steps: int, decay: int, shape: str, end: float) -> list[float]:
    """The factors of transformers without a warm-up, which rises from `end` there and wastes a step at 0."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = get_wsd_schedule(optimizer, 0, decay, steps, decay_type=shape, min_lr_ratio=end)
    return [schedule.lr_lambdas[0](step) for step in range(steps)]


@pytest.mark.parametrize("end", [0.0, 0.1])
@pytest.mark.parametrize("shape", ["linear", "1-sqrt", "cosine"])
@pytest.mark.parametrize(("steps", "warmup", "decay"), [(20, 4, 6), (20, 0, 20), (9, 3, 6), (5, 2, 1), (10, 4, 0)])
def test_every_step_of_a_run(steps: int, warmup: int, decay: int, shape: Any, end: float) -> None:
    options: dict[str, Any] = {"warmup_steps": warmup, "decay_steps": decay, "shape": shape, "end": end}
    rates = [warmup_stable_decay(step, steps, **options) for step in range(steps)]
    rising = [min(1.0, (step + 1) / warmup) if warmup else 1.0 for step in range(steps)]
    assert rates == pytest.approx([a * b for a, b in zip(rising, theirs(steps, decay, shape, end), strict=True)])
    assert min(rates) > 0, "a step is wasted"
    assert rates[warmup : steps - decay] == [1.0] * (steps - decay - warmup)


def test_by_hand() -> None:
    rates = [warmup_stable_decay(step, 10, warmup_steps=2, decay_steps=4, end=0.2) for step in range(10)]
    assert rates == pytest.approx([0.5, 1, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4])
    shorter = [warmup_stable_decay(s, 10, warmup_steps=0, decay_steps=4, shape="1-sqrt") for s in range(10)]
    assert shorter[6:] == pytest.approx([1, 0.5, 1 - 0.5**0.5, 1 - 0.75**0.5])


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_fall_from_one_to_zero(shape: str) -> None:
    values = [SHAPES[shape](n / 16) for n in range(17)]
    assert (values[0], values[-1]) == (1, 0)
    assert all(a > b for a, b in itertools.pairwise(values))


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({}, {"decay_steps": 2}),
        ({"decay_share": 0.33}, {"decay_steps": 7}),
        ({"decay_share": 0.9, "decay_steps": 3}, {"decay_steps": 3}),
        ({"decay_share": 0.9, "decay_steps": 0}, {"decay_steps": 0}),
        ({"warmup_share": 0.3}, {"warmup_steps": 6, "decay_steps": 2}),
        ({"warmup_share": 0.0, "warmup_steps": 5}, {"warmup_steps": 0, "decay_steps": 2}),
    ],
    ids=str,
)
def test_shares_of_the_steps(given: dict[str, Any], same: dict[str, Any]) -> None:
    """A share of the warm-up counts instead of its number, a number of decay steps instead of their share."""
    one, other = ([warmup_stable_decay(s, 20, **{"warmup_steps": 4, **o}) for s in range(20)] for o in (given, same))
    assert one == other


def test_what_does_not_fit_is_refused() -> None:
    assert warmup_stable_decay(0, 10, warmup_steps=6, decay_steps=4) == 1 / 6
    reason = (
        "a warm-up of 6 steps and a decay of 5 do not fit into 10 steps. "
        "Lower schedules.learning_rate.warmup_steps or decay_steps, or their shares."
    )
    for step in (0, 9):
        with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
            warmup_stable_decay(step, 10, warmup_steps=6, decay_steps=5)
    with pytest.raises(ValueError, match=r"a warm-up of 10,000 steps does not fit into 1,500 steps\. Lower schedules"):
        warmup_stable_decay(0, 1500)
    with pytest.raises(ValueError, match="do not fit"):
        warmup_stable_decay(0, 10, warmup_share=0.6, decay_share=0.6)
