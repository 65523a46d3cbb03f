"""Means, paired differences, Holm's correction, and that the verdict claims no more than they allow."""

from __future__ import annotations

import math
import re
from itertools import pairwise as neighbours
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from electra_lab.ablation.statistics import (
    ALPHA,
    against,
    difference,
    estimate,
    holm,
    is_exploratory,
    number,
    p_text,
    pairwise,
    sentences,
)

SAMPLES = st.lists(st.floats(-100, 100), min_size=2, max_size=12)


def verdict(*arguments: Any, **options: Any) -> str:
    return " ".join(sentences(*arguments, **options))


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
    assert found.p == pytest.approx(oracle.pvalue, rel=1e-6, abs=1e-12)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-9)


def test_pairs_are_made_by_seed_and_only_of_seeds_that_both_have() -> None:
    found = difference({3: 1.5, 0: 1.0, 7: 9.0}, {0: 0.5, 3: 0.75, 5: -40.0})
    assert (found.n, found.mean) == (2, pytest.approx(0.625))
    assert found.p == pytest.approx(stats.ttest_rel([1.0, 1.5], [0.5, 0.75]).pvalue)


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
    """1500 experiments of 4 seeds, a true difference of 0.3 under much luck of the seed: 95%, within 3 deviations."""
    rng = np.random.default_rng(0)
    luck, noise = rng.normal(0, 5, (1500, 4)), rng.normal(0, 0.4, (1500, 2, 4))
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
        found = against(values, "0").values()
        false += any(d.distinguishable for d in found)
        raw += any(d.p is not None and d.p <= ALPHA for d in found)
    assert false / experiments < 0.05 + 3 * math.sqrt(0.05 * 0.95 / experiments)
    assert raw / experiments > 0.1


def test_the_comparisons_with_the_baseline_are_one_family_and_all_pairs_another() -> None:
    rng = np.random.default_rng(2)
    values = {label: seeded(list(rng.normal(i, 1, 6))) for i, label in enumerate("abcd")}
    planned = against(values, "b")
    assert list(planned) == ["a", "c", "d"]
    assert [d.holm for d in planned.values()] == holm([d.p for d in planned.values()])
    assert planned["c"].mean == pytest.approx(np.mean(list(values["c"].values())) - np.mean(list(values["b"].values())))
    pairs = pairwise(values)
    assert len(pairs) == 12
    assert pairs["a", "d"].mean == pytest.approx(-(pairs["d", "a"].mean or 0))
    assert pairs["a", "d"].holm == pairs["d", "a"].holm
    half = [pairs[a, b] for i, a in enumerate("abcd") for b in "abcd"[i + 1 :]]
    assert [d.holm for d in half] == holm([d.p for d in half])


def far(*means: float, seeds: int = 5, spread: float = 0.001) -> dict[str, dict[int, float]]:
    """Variants v0, v1, ... around these means, well apart or not by `spread`."""
    rng = np.random.default_rng(5)
    return {f"v{i}": seeded([m + spread * rng.normal() for _ in range(seeds)]) for i, m in enumerate(means)}


def test_a_difference_within_the_noise_is_called_nothing_else() -> None:
    said = verdict("auc", far(0.70, 0.7005, 0.6995, spread=0.01, seeds=3), "v0")
    assert said.startswith("With 3 seeds this is exploratory.")
    assert "is not distinguishable from seed noise (Holm p = " in said or "No variant is distinguishable" in said
    assert not re.search(r"distinguishably (better|worse)|is distinguishable from seed", said)
    assert "equal" not in said


def test_what_the_tests_show_is_said() -> None:
    said = sentences("auc", far(0.70, 0.75, 0.60, 0.7004), "v0")
    assert said[0] == "Every variant has 5 seeds or more."
    assert said[1].startswith("v1 has the best (the highest) mean auc, 0.7")
    assert "is distinguishable from seed noise (Holm p < 0.001)." in said[1]
    assert "v2 (Holm p < 0.001) is distinguishably worse than the baseline" in said[2]
    assert "v3 is not distinguishable from it." in said[2]
    assert said[3] == "The best can be told from every variant beyond the baseline (Holm over all 6 pairs)."


def test_lower_can_be_better() -> None:
    said = verdict("loss", far(5.0, 5.5, 4.5), "v0", higher_is_better=False)
    assert "v2 has the best (the lowest) mean loss, 4.5" in said
    assert "v1 (Holm p < 0.001) is distinguishably worse than the baseline" in said


def test_rivals_are_named_by_tests_that_count_all_pairs() -> None:
    values = far(0.60, 0.7495, 0.75, 0.70)
    assert "The best cannot be told from v1 (Holm over all 6 pairs)." in verdict("auc", values, "v0")
    assert "v2 has the best" in verdict("auc", values, "v0")


def test_on_a_numeric_key_the_place_of_the_best_is_told() -> None:
    axis = {"v0": 0.25, "v1": 0.5, "v2": 1.0}
    inside = verdict("auc", far(0.7, 0.8, 0.75), "v0", axis=axis, key="generator.scale")
    assert "Of the values of generator.scale from 0.25 to 1 the best mean lies at 0.5, between 0.25 and 1." in inside
    edge = verdict("auc", far(0.7, 0.75, 0.8), "v0", axis=axis, key="generator.scale")
    assert "lies at 1, an end of the range: what lies beyond it was not tried." in edge
    assert "lies at" not in verdict("auc", far(0.7, 0.75, 0.8), "v0")


def test_one_seed_tells_nothing() -> None:
    said = verdict("auc", far(0.7, 0.9, 0.5, seeds=1), "v0")
    assert said.startswith("With 1 seed this is exploratory: nothing can be told from seed noise.")
    assert "cannot be tested (one seed: no interval)" in said
    assert "Holm" not in said


def test_what_is_missing_is_said() -> None:
    values = far(0.7, 0.8, 0.75)
    assert verdict("auc", {}, "v0") == "Nothing can be said yet: no cell has a auc."
    assert "there is nothing to compare" in verdict("auc", {"v0": values["v0"], "v1": {}}, "v0")
    assert "v2 has no auc." in verdict("auc", values | {"v2": {}}, "v0")
    assert "the baseline v0 was not measured" in verdict("auc", values | {"v0": {}}, "v0")
    assert "they have no seed in common" in verdict("auc", {"v0": {0: 0.1}, "v1": {1: 0.2}}, "v0")
    shorter = values | {"v1": {s: v for s, v in values["v1"].items() if s < 3}}
    assert verdict("auc", shorter, "v0").startswith("With 3 seeds this is exploratory.")
    assert "The means are not all over the same seeds" in verdict("auc", shorter, "v0")
    assert "The means are not" not in verdict("auc", values, "v0")


def test_a_name_of_words_stands_in_quotes() -> None:
    values = far(0.7, 0.9, 0.8)
    said = verdict("auc", {"as it was": values["v0"], "all tokens": values["v1"], "mlm": values["v2"]}, "as it was")
    assert '"all tokens" has the best (the highest) mean auc' in said
    assert 'the baseline "as it was"' in said


def test_equal_means_are_no_victory() -> None:
    same = seeded([0.7, 0.72, 0.71])
    said = verdict("auc", {"a": same, "b": same, "c": seeded([0.6, 0.61, 0.62])}, "b")
    assert "b (the baseline) has the best (the highest) mean auc, 0.7100, as has a." in said


@pytest.mark.parametrize(("seeds", "label"), [(4, True), (5, False)])
def test_fewer_than_five_seeds_are_exploratory(seeds: int, label: bool) -> None:
    assert is_exploratory(far(0.7, 0.8, seeds=seeds)) is label
    assert is_exploratory(far(0.7, seeds=9) | {"v1": {0: 1.0, 1: 2.0}})


@given(
    st.lists(st.lists(st.floats(0.5, 1).map(lambda v: round(v, 4)), min_size=0, max_size=6), min_size=1, max_size=5),
    st.booleans(),
)
def test_the_verdict_never_claims_what_the_corrected_tests_do_not(runs: list[list[float]], higher: bool) -> None:
    values = {f"v{i}": seeded(each) for i, each in enumerate(runs)}
    said = verdict("auc", values, "v0", higher, {f"v{i}": float(i) for i in range(len(runs))}, "key")
    claims = re.findall(r"(v\d) \(Holm [^)]*\)(?=[^.;]*distinguishably (?:better|worse))", said)
    planned = against(values, "v0")
    assert all(planned[label].distinguishable for label in claims)
    if " is distinguishable from seed noise" in said:
        best = re.search(r"(v\d)[^.]* has the best", said)
        assert best
        assert planned[best[1]].distinguishable
    assert not re.search(r"\b(nan|inf|None)\b", said)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.71234, "0.7123"), (5.12345, "5.123"), (12345.6, "12,346"), (0.0, "0"), (None, "-"), (2.5e-6, "2.5e-06"),
     (-0.00213, "-0.0021"), (1.5e12, "1.5e+12"), (99.987, "99.99")],
)  # fmt: skip
def test_numbers_have_sensible_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_signs_and_probabilities() -> None:
    assert (number(0.0042, sign=True), number(-0.5, sign=True)) == ("+0.0042", "-0.5000")
    assert [p_text(p) for p in (0.31, 0.0496, 0.0004, 1.0, None)] == [
        "p = 0.31", "p = 0.050", "p < 0.001", "p = 1.00", "p undefined"]  # fmt: skip
