"""Means, paired differences, Holm's correction, and how numbers are written."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from electra_lab.analysis.intervals import ENOUGH, difference, estimate, layer
from tests.electra_lab.analysis.tiny import seeded


def test_the_interval_of_a_mean_by_hand() -> None:
    """s = 1, n = 3: the half width is 4.3027 / sqrt(3)."""
    found = estimate([1.0, 2.0, 3.0])
    assert (found.n, found.mean) == (3, 2.0)
    assert found.half == pytest.approx(4.302652729911275 / math.sqrt(3))
    assert found.low == pytest.approx(2 - 4.302652729911275 / math.sqrt(3))


@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(-100, 100)), min_size=2, max_size=12))
def test_a_paired_difference_is_scipys(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = (list(side) for side in zip(*pairs, strict=True))
    found = difference(seeded(ours), seeded(theirs))
    assert found.mean == pytest.approx(np.mean(np.subtract(ours, theirs)))
    if np.std(np.subtract(ours, theirs), ddof=1) <= 1e-12 * max(map(abs, ours + theirs)):
        return  # rounding decides: see UNTESTED
    oracle = stats.ttest_rel(ours, theirs)
    interval = oracle.confidence_interval(0.95)
    if len(pairs) < ENOUGH:
        assert (found.p, found.why) == (None, f"{len(pairs)} seeds: not tested")
    else:
        assert found.p == pytest.approx(oracle.pvalue, rel=1e-6, abs=1e-12)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-9)


UNTESTED = [
    ([], [1.0], 0, "no seed in common"),
    ([1.0], [0.5], 1, "one seed"),
    ([0.1, 0.2, 0.3], [0.0, 0.1, 0.2], 3, "the same difference with every seed"),  # except for a spread of 1e-17
    ([0.7, 0.7], [0.7, 0.7], 2, "the same difference with every seed"),
]


@pytest.mark.parametrize(("ours", "theirs", "n", "why"), UNTESTED)
def test_what_cannot_be_tested_is_neither_certain_nor_impossible(ours: Any, theirs: Any, n: int, why: str) -> None:
    found = difference(seeded(ours), seeded(theirs))
    assert (found.n, found.mean is None) == (n, n == 0)
    assert (found.low, found.high, found.p, found.half) == (None, None, None, None)
    assert found.why.startswith(why)
    assert not found.distinguishable
    assert difference({1: 1.0}, {0: 1.0}).n == 0


def test_one_value_or_none_has_no_interval() -> None:
    assert (estimate([0.5]).mean, estimate([0.5]).half) == (0.5, None)
    assert (estimate([]).mean, estimate([]).why) == (None, "not measured")
    assert (estimate([0.5, 0.5]).half, "every seed" in estimate([0.5, 0.5]).why) == (None, True)


@pytest.mark.parametrize("seeds", [5, 8])
def test_the_p_value_is_that_of_an_integral(seeds: int) -> None:
    rng = np.random.default_rng(1)
    numbers = rng.normal(0, 1, (seeds, 1)) + rng.normal(0, 2, (1, 6)) + rng.normal(0, 0.5, (seeds, 6)) + 1
    ours, zeros = dict(enumerate(numbers.tolist())), {seed: [0.0] * 6 for seed in range(seeds)}
    found = difference(dict(enumerate(numbers.mean(1))), dict.fromkeys(range(seeds), 0.0), {"documents": (ours, zeros)})
    of_seeds, of_units = numbers.mean(1) - numbers.mean(), numbers.mean(0) - numbers.mean()
    rest = numbers - numbers.mean() - of_seeds[:, None] - of_units
    squares = [6 * (of_seeds**2).sum(), seeds * (of_units**2).sum(), (rest**2).sum()]
    freedoms = [seeds - 1, 5, 5 * (seeds - 1)]
    drawn = np.random.default_rng(2)
    scaled = [square / drawn.chisquare(df, 1_000_000) for square, df in zip(squares, freedoms, strict=True)]
    by_seeds, by_units, noise = np.array(scaled) / (6 * seeds)
    variances = by_seeds + np.maximum(0, by_units - noise)
    p = float(np.mean(2 * stats.norm.sf(abs(numbers.mean()) / np.sqrt(variances))))
    assert found.p == pytest.approx(p, rel=0.02)
    outside = 2 * stats.norm.sf((found.high - numbers.mean()) / np.sqrt(variances))
    assert np.mean(outside) == pytest.approx(0.05, rel=0.01)
    assert found.error == pytest.approx(numbers.mean(1).std(ddof=1) / math.sqrt(seeds))  # by seeds alone
    kept, square = found.layers["documents"], (found.error or 0) ** 2
    assert kept.beyond * square == pytest.approx((squares[1] / 5 - squares[2] / freedoms[2]) / (6 * seeds))


def test_documents_never_make_an_interval_narrower() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        numbers = rng.normal(0, 1, (5, 1)) + rng.normal(0, 1, (5, 12))
        ours, zeros = dict(enumerate(numbers.mean(1))), dict.fromkeys(range(5), 0.0)
        alone = difference(ours, zeros)
        units = {"documents": (dict(enumerate(numbers.tolist())), {s: [0.0] * 12 for s in range(5)})}
        found = difference(ours, zeros, units)
        assert (found.half or 0) >= (alone.half or 0) > 0
        assert (found.p or 0) >= (alone.p or 0)


@pytest.mark.parametrize("side", [0, 1])
def test_documents_are_known_by_the_seeds_that_have_them(side: int) -> None:
    """A seed without documents must not make the interval as narrow as if no seed had them."""
    rng = np.random.default_rng(4)
    numbers = rng.normal(0, 1, (2, 5, 9)) + rng.normal(0, 3, (2, 1, 9))
    ours, theirs = (dict(enumerate(values.tolist())) for values in numbers)
    means = [dict(enumerate(values.mean(1).tolist())) for values in numbers]
    alone = difference(*means)
    lacking = (ours, theirs)[side]
    for left in (5, 4, 3, 2):
        found = difference(*means, {"documents": (ours, theirs)})
        expected = layer((np.array([ours[s] for s in range(left)]) - [theirs[s] for s in range(left)]) / alone.error)
        assert found.layers == {"documents": expected}
        assert (found.half or 0) > 1.5 * (alone.half or 0)
        del lacking[left - 1]
    assert difference(*means, {"documents": (ours, theirs)}) == alone  # a single seed cannot tell
    lacking.clear()
    assert difference(*means, {"documents": (ours, theirs)}) == alone


def test_documents_of_other_texts_are_not_compared() -> None:
    rng = np.random.default_rng(4)
    numbers = [rng.normal(0, 1, (5, n)) for n in (9, 8)]
    ours, theirs = (dict(enumerate(values.tolist())) for values in numbers)
    means = [dict(enumerate(values.mean(1).tolist())) for values in numbers]
    assert difference(*means, {"documents": (ours, theirs)}) == difference(*means)


def test_a_small_p_value_is_that_of_an_integral() -> None:
    """The integral is over the two possible variances, by scipy's quadrature; seeds have no interaction."""
    seeds = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])[:, None] / 100
    units = np.linspace(-1, 1, 8)[None, :] / 40
    numbers = 0.12 + seeds + units
    ours, theirs = dict(enumerate(numbers.tolist())), {s: [0.0] * 8 for s in range(5)}
    found = difference(dict(enumerate(numbers.mean(1).tolist())), dict.fromkeys(range(5), 0.0), {"u": (ours, theirs)})
    by_seeds, by_units = seeds.var(ddof=1) / 5, units.var(ddof=1) / 8

    def inside(x: float, y: float) -> float:
        far = 0.12 / math.sqrt(by_seeds * 4 / x + by_units * 7 / y)
        densities = x * math.exp(-x / 2) / 4 * y**2.5 * math.exp(-y / 2) / (2**3.5 * math.gamma(3.5))
        return math.erfc(far / math.sqrt(2)) * densities

    p, _ = integrate.dblquad(inside, 0.01, 60, 1e-6, 30, epsabs=1e-8)
    assert 1e-5 < p < 1e-3
    assert found.p == pytest.approx(p, rel=0.03)
