"""A straight line, by hand."""

from __future__ import annotations

import pytest

from electra_lab.schedules.linear import linear


def test_equal_steps_from_start_to_end() -> None:
    line = [linear(n / 4, start=2.0, end=1.0) for n in range(5)]
    assert line == [2.0, 1.75, 1.5, 1.25, 1.0]
    assert [linear(n / 4, start=0.1, end=0.3) for n in range(5)] == pytest.approx([0.1, 0.15, 0.2, 0.25, 0.3])


def test_it_stays_at_the_end_after_a_share_of_training() -> None:
    line = [linear(progress, start=4.0, end=0.0, until=0.5) for progress in (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)]
    assert line == [4.0, 3.0, 2.0, 0.0, 0.0, 0.0]
