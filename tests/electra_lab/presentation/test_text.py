"""Numbers and facts in words."""

from __future__ import annotations

import pytest

from electra_lab.presentation.text import number, p_text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.71234, "0.7123"), (5.12345, "5.123"), (12345.6, "12,346"), (0.0, "0"), (None, "-"), (2.5e-6, "2.5e-06"),
     (-0.00213, "-0.0021"), (1.5e12, "1.5e+12"), (99.987, "99.99")],
)  # fmt: skip
def test_numbers_have_sensible_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_signs_and_probabilities() -> None:
    assert (number(0.0042, sign=True), number(-0.5, sign=True)) == ("+0.0042", "-0.5000")
    assert [p_text(p) for p in (0.31, 0.0496, 0.05, 0.0504, 0.050004, 0.0004, 1.0, None)] == [
        "p = 0.31", "p = 0.050", "p = 0.050", "p = 0.0504", "p = 0.050004",
        "p < 0.001", "p = 1.00", "p undefined"]  # fmt: skip
