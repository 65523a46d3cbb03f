"""Whether a comparison depends on the reference: against scipy, by simulation, and in words."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from electra_lab.analysis import interaction
from electra_lab.analysis.comparisons import Parts, claims
from electra_lab.analysis.statistics import ALPHA, Difference, corrected

Numbers = np.ndarray[Any, np.dtype[np.float64]]
SMALL, LARGE, WORDS = "auc_small", "auc_large", "auc_unigram"


def contrasts(values: Parts, baseline: str) -> dict[tuple[str, str, str], Difference]:
    """Return the contrasts, corrected as in a report of these metrics alone, none of which is the primary one."""
    return claims(values, "", baseline, [list(values)]).contrasts(list(values))


def sentences(values: Parts, baseline: str, higher: bool = True) -> list[str]:
    return interaction.sentences(values, claims(values, "", baseline, [list(values)]), baseline, higher)


def parts(numbers: Numbers) -> dict[str, dict[str, dict[int, float]]]:
    """Name numbers by reference, variant and seed."""
    return {
        name: {f"v{i}": dict(enumerate(each)) for i, each in enumerate(values.tolist())}
        for name, values in zip((SMALL, LARGE, WORDS), numbers, strict=False)
    }


def simulated(
    rng: np.random.Generator, variants: int = 4, seeds: int = 5, planted: float = 0.0, noise: float = 0.004
) -> Numbers:
    """Return Float64[R V S]: everything that a run's luck and skill may do to its numbers but an interaction.

    References differ in how hard they are, seeds in their luck, also with a reference or a variant, and variants in
    how good they are. `planted` is what the last variant gains by the last reference alone.
    """
    made: Numbers = 0.6 + rng.normal(0, 0.1, (3, 1, 1)) + rng.normal(0, 0.05, (1, variants, 1))
    made = made + rng.normal(0, 0.05, (1, 1, seeds)) + rng.normal(0, 0.02, (3, 1, seeds))
    made = made + rng.normal(0, 0.02, (1, variants, seeds)) + rng.normal(0, noise, (3, variants, seeds))
    made[-1, -1] += planted
    return made


def test_contrasts_are_scipys_tests_of_differences_of_differences() -> None:
    numbers = simulated(np.random.default_rng(0))
    found = contrasts(parts(numbers), "v1")
    names = (SMALL, LARGE, WORDS)
    assert list(found) == [(f"v{v}", a, b) for a, b in combinations(names, 2) for v in (0, 2, 3)]
    raw = []
    for (label, a, b), d in found.items():
        v, i, j = int(label[1]), names.index(a), names.index(b)
        ours, theirs = numbers[i, v] - numbers[i, 1], numbers[j, v] - numbers[j, 1]
        oracle = stats.ttest_rel(ours, theirs)
        low, high = oracle.confidence_interval(0.95)
        assert (d.n, d.mean) == (5, pytest.approx(np.mean(ours) - np.mean(theirs)))
        assert (d.low, d.high, d.p) == pytest.approx((low, high, oracle.pvalue))
        raw.append(float(oracle.pvalue))
    smallest = min(range(9), key=raw.__getitem__)
    # A family of these, of three differences to the baseline by each reference, and of three pairs by each.
    assert [d.holm for d in found.values()][smallest] <= min(1, (9 + 9 + 9) * raw[smallest]) + 1e-12
    alone = corrected({}, found)
    assert [d.holm for d in alone.values()][smallest] == pytest.approx(min(1, 9 * raw[smallest]))


def test_pairs_are_made_of_the_seeds_that_all_four_numbers_have() -> None:
    whole = parts(simulated(np.random.default_rng(1)))
    kept = {name: {label: dict(each) for label, each in values.items()} for name, values in whole.items()}
    del kept[SMALL]["v0"][0], kept[LARGE]["v0"][1], kept[SMALL]["v2"][2], kept[LARGE]["v2"][3]
    d = contrasts(kept, "v0")["v2", SMALL, LARGE]
    rest = {n: {k: {4: each[4]} for k, each in values.items()} for n, values in whole.items()}
    assert (d.n, d.why) == (1, "one seed: no interval")
    assert d.mean == pytest.approx(contrasts(rest, "v0")["v2", SMALL, LARGE].mean)
    assert contrasts(kept, "v0")["v2", LARGE, WORDS].n == 3
    assert contrasts({SMALL: whole[SMALL], LARGE: {"v2": whole[LARGE]["v2"]}}, "v0")["v2", SMALL, LARGE].n == 0


def test_equal_differences_are_not_certain() -> None:
    """The spread of these contrasts is rounding, 1e-16; an interval of that width would claim certainty."""
    luck = np.random.default_rng(4).uniform(0.01, 0.9, (3, 8))
    numbers = np.stack([np.stack([each, each + 1.37e-4 * (r + 1)]) for r, each in enumerate(luck)])
    found = contrasts(parts(numbers), "v0")
    assert np.std(numbers[0, 1] - numbers[0, 0] - numbers[1, 1] + numbers[1, 0]) > 0
    assert {d.p for d in found.values()} == {None}
    assert all(d.why == "the same difference with every seed: no interval" for d in found.values())


def test_where_nothing_depends_on_the_reference_it_is_seldom_said() -> None:
    """Three references, three differences: uncorrected, one experiment in five would say so."""
    rng = np.random.default_rng(2)
    experiments, false, raw = 200, 0, 0
    for _ in range(experiments):
        found = contrasts(parts(simulated(rng)), "v0").values()
        raw += any(d.p is not None and d.p <= ALPHA for d in found)
        false += any(d.distinguishable for d in found)
    assert false / experiments < 0.05 + 3 * math.sqrt(0.05 * 0.95 / experiments)
    assert raw / experiments > 0.15


def test_what_is_planted_is_found() -> None:
    """A variant gains .03 by one reference alone, as one whose generator resembles it would."""
    rng = np.random.default_rng(3)
    found = [contrasts(parts(simulated(rng, planted=0.03, noise=0.003)), "v0") for _ in range(60)]
    for pair, sign in (((SMALL, WORDS), -1), ((LARGE, WORDS), -1)):
        hits = [each["v3", *pair] for each in found]
        assert np.mean([d.distinguishable and sign * (d.mean or 0) > 0 for d in hits]) > 0.9
        assert np.mean([d.mean or 0 for d in hits]) == pytest.approx(sign * 0.03, abs=0.003)
    assert np.mean([each["v3", SMALL, LARGE].distinguishable for each in found]) < 0.1


# In words


def said(table: Mapping[str, Mapping[str, list[float]]], baseline: str = "base", higher: bool = True) -> list[str]:
    """Return the sentences about numbers by reference and variant, one per seed."""
    named = {name: {k: dict(enumerate(each)) for k, each in values.items()} for name, values in table.items()}
    return sentences(named, baseline, higher)


LUCK = [0.60, 0.65, 0.71, 0.58, 0.66]


def around(mean: float, step: float = 0.0002) -> list[float]:
    """Return LUCK plus about `mean`."""
    return [luck + mean + step * (i % 3) for i, luck in enumerate(LUCK)]


def test_a_difference_that_turns_round() -> None:
    found = said({
        SMALL: {"base": LUCK, "x": around(0.01), "y": around(0.0)},
        WORDS: {"base": around(0.1, 0.0), "x": around(0.05, 0.0001), "y": around(0.1, 0.0003)},
    })  # fmt: skip
    assert found == [
        "The differences to the baseline depend on the reference: that of x (+0.0102 by "
        "auc_small, -0.0499 by auc_unigram, p < 0.001). x is distinguishably better than the baseline by one reference "
        "and worse by another.",
        "The variant with the best mean is not the same by every reference: x by auc_small; y by auc_unigram.",
    ]


def test_a_difference_that_only_changes_its_size() -> None:
    """And a label with spaces."""
    found = said({
        SMALL: {"base": LUCK, "whole words": around(0.01)},
        LARGE: {"base": LUCK, "whole words": around(0.02, 0.0001)},
        WORDS: {"base": LUCK, "whole words": around(0.05, 0.0003)},
    })  # fmt: skip
    assert len(found) == 2
    assert found[0].startswith(
        'The differences to the baseline depend on the reference: that of "whole words" ('
        "+0.0102 by auc_small, +0.0502 by auc_unigram, "  # the two that are furthest apart
    )
    assert found[0].endswith("p < 0.001).")
    assert found[1] == '"whole words" has the best mean by every reference.'
    lower = said({
        SMALL: {"base": LUCK, "x": around(0.01)},
        WORDS: {"base": LUCK, "x": around(0.05)},
    }, higher=False)  # fmt: skip
    assert lower[1] == "base has the best mean by every reference."


def test_no_difference_that_can_be_distinguished() -> None:
    noisy = [0.60, 0.66, 0.71, 0.59, 0.66]
    found = said({SMALL: {"base": LUCK, "x": noisy}, WORDS: {"base": LUCK, "x": around(0.003)}})
    p = stats.ttest_1samp(np.subtract(noisy, LUCK) - np.subtract(around(0.003), LUCK), 0).pvalue
    assert found == [
        "No difference to the baseline is distinguishably larger or smaller by one reference than by another "
        f"(smallest p = {p:.2f}).",
        "x has the best mean by every reference.",
    ]


def test_what_cannot_be_tested_says_why() -> None:
    one = said({SMALL: {"base": [0.6], "x": [0.7]}, WORDS: {"base": [0.6], "x": [0.5]}})
    assert one == [
        "Whether the order of the variants depends on the reference cannot be tested (one seed: no interval).",
        "The variant with the best mean is not the same by every reference: x by auc_small; base by auc_unigram.",
    ]
    same = said({SMALL: {"base": [0.6, 0.7], "x": [0.7, 0.8]}, WORDS: {"base": [0.6, 0.7], "x": [0.5, 0.6]}})
    assert "cannot be tested (the same difference with every seed: no interval)." in same[0]
    apart = {SMALL: {"base": {0: 0.5}, "x": {1: 0.6}}, WORDS: {"base": {0: 0.5}, "x": {1: 0.6}}}
    assert sentences(apart, "base") == [
        "Whether the order of the variants depends on the reference cannot be tested (no seed in common)."
    ]


def test_of_one_reference_or_one_variant_nothing_is_said() -> None:
    alone: dict[str, list[float]] = {"base": LUCK, "x": []}
    assert said({}) == said({SMALL: {"base": LUCK, "x": LUCK}}) == said({SMALL: alone, WORDS: alone}) == []
    assert said({SMALL: {"base": LUCK, "x": LUCK}, WORDS: {"base": [], "x": []}}) == []


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 6), st.sampled_from([0.0, 0.05]), st.booleans(),
    st.sets(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 5)), max_size=8),
)  # fmt: skip
def test_no_more_is_claimed_than_the_corrected_tests_allow(
    seed: int, variants: int, seeds: int, planted: float, higher: bool, lost: set[tuple[int, int, int]]
) -> None:
    values = parts(simulated(np.random.default_rng(seed), variants, seeds, planted))
    for r, v, s in lost:
        values[(SMALL, LARGE, WORDS)[r]].get(f"v{v}", {}).pop(s, None)
    found, words = contrasts(values, "v0"), " ".join(sentences(values, "v0", higher))
    clear = {label for (label, *_), d in found.items() if d.distinguishable}
    assert set(re.findall(r"(v\d) \([+-]", words)) == clear
    assert ("depend on the reference: that" in words) == bool(clear)
    assert set(re.findall(r"(v\d) is distinguishably better than", words)) <= clear
    assert not re.search(r"\b(nan|inf|None)\b", words)
