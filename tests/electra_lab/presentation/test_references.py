"""Whether a comparison depends on the reference: against scipy, by simulation, and in words."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from electra_lab.analysis.comparisons import Parts, compare
from electra_lab.presentation import references
from tests.electra_lab.analysis.tiny import LARGE, SMALL, WORDS, parts, simulated


def sentences(values: Parts, baseline: str, higher: bool = True) -> list[str]:
    return references.sentences(values, compare(values, "", baseline, [list(values)]), baseline, higher)


def said(table: Mapping[str, Mapping[str, list[float]]], baseline: str = "base", higher: bool = True) -> list[str]:
    named = {name: {k: dict(enumerate(each)) for k, each in values.items()} for name, values in table.items()}
    return sentences(named, baseline, higher)


LUCK = [0.60, 0.65, 0.71, 0.58, 0.66]


def around(mean: float, step: float = 0.0002) -> list[float]:
    """Return LUCK plus about `mean`."""
    return [luck + mean + step * (i % 3) for i, luck in enumerate(LUCK)]


def test_a_difference_that_turns_round() -> None:
    words = {"base": around(0.1, 0.0), "x": around(0.05, 0.0001), "y": around(0.1, 0.0003)}
    found = said({SMALL: {"base": LUCK, "x": around(0.01), "y": around(0.0)}, WORDS: words})
    assert len(found) == 2
    assert "that of x (+0.0102 by auc_small, -0.0499 by auc_unigram, p < 0.001). x is distinguishably" in found[0]
    assert found[0].endswith("by one reference and worse by another.")
    assert found[1].endswith("not the same by every reference: x by auc_small; y by auc_unigram.")


def test_a_difference_that_only_changes_its_size() -> None:
    found = said({
        SMALL: {"base": LUCK, "whole words": around(0.01)},
        LARGE: {"base": LUCK, "whole words": around(0.02, 0.0001)},
        WORDS: {"base": LUCK, "whole words": around(0.05, 0.0003)},
    })  # fmt: skip
    assert len(found) == 2
    # The two that are furthest apart.
    assert found[0].endswith('that of "whole words" (+0.0102 by auc_small, +0.0502 by auc_unigram, p < 0.001).')
    assert found[1] == '"whole words" has the best mean by every reference.'
    lower = said({part: {"base": LUCK, "x": around(by)} for part, by in ((SMALL, 0.01), (WORDS, 0.05))}, higher=False)
    assert lower[1] == "base has the best mean by every reference."


def test_no_difference_that_can_be_distinguished() -> None:
    noisy = [0.60, 0.66, 0.71, 0.59, 0.66]
    found = said({SMALL: {"base": LUCK, "x": noisy}, WORDS: {"base": LUCK, "x": around(0.003)}})
    p = stats.ttest_1samp(np.subtract(noisy, LUCK) - np.subtract(around(0.003), LUCK), 0).pvalue
    assert found[0].startswith("No difference to the baseline is distinguishably larger or smaller by one reference")
    assert found[0].endswith(f" (smallest p = {p:.2f}).")
    assert found[1:] == ["x has the best mean by every reference."]


def test_what_cannot_be_tested_says_why() -> None:
    one = said({SMALL: {"base": [0.6], "x": [0.7]}, WORDS: {"base": [0.6], "x": [0.5]}})
    assert one[0].endswith("cannot be tested (one seed: no interval).")
    assert one[1].endswith("not the same by every reference: x by auc_small; base by auc_unigram.")
    same = said({SMALL: {"base": [0.6, 0.7], "x": [0.7, 0.8]}, WORDS: {"base": [0.6, 0.7], "x": [0.5, 0.6]}})
    assert "cannot be tested (the same difference with every seed: no interval)." in same[0]
    [apart] = sentences({part: {"base": {0: 0.5}, "x": {1: 0.6}} for part in (SMALL, WORDS)}, "base")
    assert apart.endswith("cannot be tested (no seed in common).")


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
    words = " ".join(sentences(values, "v0", higher))
    found = compare(values, "", "v0", [list(values)]).contrasts(list(values))
    clear = {label for (label, *_), d in found.items() if d.distinguishable}
    assert set(re.findall(r"(v\d) \([+-]", words)) == clear
    assert ("depend on the reference: that" in words) == bool(clear)
    assert set(re.findall(r"(v\d) is distinguishably better than", words)) <= clear
    assert not re.search(r"\b(nan|inf|None)\b", words)
