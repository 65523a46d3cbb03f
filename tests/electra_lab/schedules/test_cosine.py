"""Half a wave of a cosine, by hand."""

from __future__ import annotations

import itertools

import pytest

from electra_lab.schedules.cosine import cosine


def test_half_a_wave() -> None:
    """1 + cos at 0, 60, 90, 120 and 180 degrees, halved."""
    wave = [cosine(progress, start=1.0, end=0.0) for progress in (0, 1 / 3, 1 / 2, 2 / 3, 1)]
    assert wave == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0], abs=1e-15)
    rising = [cosine(progress, start=2.0, end=6.0) for progress in (0, 1 / 3, 1 / 2, 2 / 3, 1)]
    assert rising == pytest.approx([2.0, 3.0, 4.0, 5.0, 6.0])


def test_it_is_slow_at_both_ends() -> None:
    wave = [cosine(n / 10, start=1.0, end=0.0) for n in range(11)]
    steps = [a - b for a, b in itertools.pairwise(wave)]
    assert max(steps[0], steps[-1]) < 0.2 * steps[4]


def test_it_stays_at_the_end_after_a_share_of_training() -> None:
    wave = [cosine(progress, start=1.0, end=0.0, until=0.25) for progress in (0.125, 0.25, 0.3, 1.0)]
    assert wave == pytest.approx([0.5, 0.0, 0.0, 0.0], abs=1e-15)
