"""A constant learning rate, with and without a warm-up."""

from __future__ import annotations

import pytest

from electra_lab.schedules.constant import constant


def test_without_options_it_is_the_full_rate() -> None:
    assert {constant(step, steps) for steps in (1, 7, 10**6) for step in (0, steps // 2, steps - 1)} == {1.0}


def test_a_warm_up_rises_in_equal_steps_and_stays() -> None:
    assert [constant(step, 6, warmup_steps=4) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert [constant(step, 4, warmup_steps=4) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]


def test_a_share_of_the_steps_counts_instead_of_their_number() -> None:
    assert [constant(step, 4, warmup_steps=99, warmup_share=0.4) for step in range(4)] == [0.5, 1.0, 1.0, 1.0]
    assert constant(0, 4, warmup_steps=3, warmup_share=0.0) == 1.0


def test_a_warm_up_that_does_not_fit_is_refused() -> None:
    for step in (0, 2):
        with pytest.raises(ValueError, match=r"a warm-up of 4 steps does not fit into 3 steps\. Lower schedules"):
            constant(step, 3, warmup_steps=4)
