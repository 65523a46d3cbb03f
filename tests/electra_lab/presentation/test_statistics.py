"""Means, paired differences, Holm's correction, and how numbers are written."""

from __future__ import annotations

import math
from itertools import pairwise as neighbours

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from electra_lab.analysis.statistics import (
    ALPHA,
    ENOUGH,
    against,
    corrected,
    difference,
    estimate,
    holm,
    is_exploratory,
    number,
    p_text,
    pairwise,
)


def seeded(values: list[float]) -> dict[int, float]:
    return dict(enumerate(values))


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
        return  # rounding decides; below it is said what has to come then
    oracle = stats.ttest_rel(ours, theirs)
    interval = oracle.confidence_interval(0.95)
    if len(pairs) < ENOUGH:
        assert (found.p, found.why) == (None, f"{len(pairs)} seeds: not tested")
    else:
        assert found.p == pytest.approx(oracle.pvalue, rel=1e-6, abs=1e-12)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-9)


def test_pairs_are_made_by_seed_and_only_of_seeds_that_both_have() -> None:
    ours, theirs = {3: 1.5, 0: 1.0, 7: 9.0, 1: 2.0, 2: 2.5, 4: 3.0}, {0: 0.5, 3: 0.75, 5: -40.0, 1: 1.0, 2: 2.0, 4: 2.5}
    found = difference(ours, theirs)
    assert (found.n, found.mean) == (5, pytest.approx(0.65))
    oracle = stats.ttest_rel([1.0, 2.0, 2.5, 1.5, 3.0], [0.5, 1.0, 2.0, 0.75, 2.5])
    assert found.p == pytest.approx(oracle.pvalue)


@pytest.mark.parametrize(
    ("ours", "theirs", "n", "why"),
    [
        ({}, {0: 1.0}, 0, "no seed in common"),
        ({1: 1.0}, {0: 1.0}, 0, "no seed in common"),
        ({0: 1.0}, {0: 0.5}, 1, "one seed"),
        ({0: 0.1, 1: 0.2, 2: 0.3}, {0: 0.0, 1: 0.1, 2: 0.2}, 3, "the same difference with every seed"),
        ({0: 0.7, 1: 0.7}, {0: 0.7, 1: 0.7}, 2, "the same difference with every seed"),
    ],
)
def test_what_cannot_be_tested_is_neither_certain_nor_impossible(
    ours: dict[int, float], theirs: dict[int, float], n: int, why: str
) -> None:
    """The third case has a spread of 1e-17 by rounding: an interval of that width would be a lie."""
    found = difference(ours, theirs)
    assert found.n == n
    assert (found.mean is None) == (n == 0)
    assert (found.low, found.high, found.p, found.half) == (None, None, None, None)
    assert found.why.startswith(why)
    assert not found.distinguishable


def test_one_value_or_none_has_no_interval() -> None:
    assert (estimate([0.5]).mean, estimate([0.5]).half) == (0.5, None)
    assert (estimate([]).mean, estimate([]).why) == (None, "not measured")
    assert estimate([0.5, 0.5]).half is None
    assert "every seed" in estimate([0.5, 0.5]).why


@pytest.mark.parametrize(
    ("raw", "adjusted"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.5, 0.9], [1.0, 1.0]),
        ([0.02], [0.02]),
        ([], []),
        ([0.02, 0.02, 0.02], [0.06, 0.06, 0.06]),
        ([None, 0.01, None, 0.04], [None, 0.02, None, 0.04]),
        ([0.001, 0.4, 0.3], [0.003, 0.6, 0.6]),
    ],
)
def test_holm_by_hand(raw: list[float | None], adjusted: list[float | None]) -> None:
    found = holm(raw)
    assert [p is None for p in found] == [p is None for p in adjusted]
    assert [p for p in found if p is not None] == pytest.approx([p for p in adjusted if p is not None])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_holm_keeps_order_and_lies_between_raw_and_bonferroni(raw: list[float]) -> None:
    found = [p for p in holm(raw) if p is not None]
    assert len(found) == len(raw)
    for p, q in zip(raw, found, strict=True):
        assert p <= q <= min(1.0, p * len(raw)) + 1e-15
    ordered = sorted(zip(raw, found, strict=True))
    assert all(a[1] <= b[1] for a, b in neighbours(ordered))
    assert min(found) == pytest.approx(min(1.0, min(raw) * len(raw)))


def test_the_paired_interval_covers_what_it_promises() -> None:
    """1500 experiments of 5 seeds, a true difference of 0.3 under much luck of the seed: 95%, within 3 deviations."""
    rng = np.random.default_rng(0)
    luck, noise = rng.normal(0, 5, (1500, 5)), rng.normal(0, 0.4, (1500, 2, 5))
    covered = tested = 0
    for shared, (ours, theirs) in zip(luck, noise, strict=True):
        found = difference(seeded(list(shared + ours + 0.3)), seeded(list(shared + theirs)))
        assert found.low is not None
        assert found.high is not None
        assert found.p is not None
        covered += found.low <= 0.3 <= found.high
        tested += found.p <= 0.05
    assert abs(covered / 1500 - 0.95) < 3 * math.sqrt(0.95 * 0.05 / 1500)
    assert tested / 1500 > 0.08  # and it sees a difference that the luck would have hidden


def test_holm_bounds_the_chance_of_any_false_finding() -> None:
    """Six equal variants, compared to one: uncorrected one experiment in six finds something."""
    rng = np.random.default_rng(1)
    experiments, false, raw = 300, 0, 0
    for _ in range(experiments):
        values = {str(v): seeded(list(rng.normal(size=5))) for v in range(6)}
        found = corrected(against(values, "0"), {}).values()
        false += any(d.distinguishable for d in found)
        raw += any(d.p is not None and d.p <= ALPHA for d in found)
    assert false / experiments < 0.05 + 3 * math.sqrt(0.05 * 0.95 / experiments)
    assert raw / experiments > 0.1


def test_planned_comparisons_share_four_fifths_of_the_errors_and_all_others_one_fifth() -> None:
    rng = np.random.default_rng(2)
    values = {label: seeded(list(rng.normal(i, 1, 6))) for i, label in enumerate("abcd")}
    planned, others = against(values, "b"), pairwise(values, "b")
    assert list(planned) == ["a", "c", "d"]
    assert list(others) == [("a", "c"), ("a", "d"), ("c", "d")]
    assert planned["c"].mean == pytest.approx(np.mean(list(values["c"].values())) - np.mean(list(values["b"].values())))
    for (one, other), found in others.items():
        assert found.mean == pytest.approx(np.mean(list(values[one].values())) - np.mean(list(values[other].values())))
    named = {("b", label): d for label, d in planned.items()}
    both = corrected(named, others)
    for family, share in ((named, 0.8), (others, 0.2)):
        alone = holm([d.p for d in family.values()])
        assert [both[key].holm for key in family] == pytest.approx([min(1, (p or 0) / share) for p in alone])
    # A family that has the report to itself has all of it; what is not tested is no family.
    assert [d.holm for d in corrected(named, {}).values()] == holm([d.p for d in planned.values()])
    few = {key: difference({0: 1.0, 1: 1.5}, {0: 0.5, 1: 0.7}) for key in others}
    assert [corrected(named, few)[key].holm for key in named] == holm([d.p for d in planned.values()])


def far(*means: float, seeds: int = 5, spread: float = 0.001) -> dict[str, dict[int, float]]:
    """Variants v0, v1, ... around these means, well apart or not by `spread`."""
    rng = np.random.default_rng(5)
    return {f"v{i}": seeded([m + spread * rng.normal() for _ in range(seeds)]) for i, m in enumerate(means)}


@pytest.mark.parametrize(("seeds", "label"), [(4, True), (5, False)])
def test_fewer_than_five_seeds_are_exploratory(seeds: int, label: bool) -> None:
    assert is_exploratory(far(0.7, 0.8, seeds=seeds), "v0") is label
    assert is_exploratory(far(0.7, seeds=9) | {"v1": {0: 1.0, 1: 2.0}}, "v0")
    assert is_exploratory({"v1": far(0.7, 0.8, seeds=seeds)["v1"]}, "v0") is label


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
