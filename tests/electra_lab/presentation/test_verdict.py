"""The verdict claims no more than the corrected tests allow, in few sentences."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_lab.analysis.comparisons import compare, is_exploratory
from electra_lab.analysis.intervals import Layer
from electra_lab.analysis.power import Spread, detectable, smallest
from electra_lab.presentation.text import number
from electra_lab.presentation.verdict import conclusions, p_text, power
from registry import Metric
from tests.electra_lab.analysis.tiny import far, seeded

Values = dict[str, dict[int, float]]


def sentences(values: Values, baseline: str = "v0", **metric: Any) -> list[str]:
    return conclusions("auc", Metric(**metric), values, baseline, compare({"auc": values}, "auc", baseline))


def verdict(values: Values, baseline: str = "v0", **metric: Any) -> str:
    """Return the one sentence, as there are no baselines without training."""
    (sentence,) = sentences(values, baseline, **metric)
    return sentence


BEST = "the best (the highest) mean"
NOISE = far(0.70, 0.7005, 0.6995, spread=0.01)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "Nothing can be said yet: auc is missing in every cell."),
        ({"v0": far(0.7)["v0"], "v1": {}}, "Only v0 has a value of auc: there is nothing to compare."),
        (NOISE, "No variant is distinguishable from another."),
        (NOISE | {"few": {0: 0.5, 1: 0.51}}, "No tested variant is distinguishable from another."),
        (far(0.70, 0.9, 0.3, 0.8, seeds=4), "With 4 seeds this is exploratory: differences are tested from"),
        (far(0.70, 0.9, 0.3, seeds=1), "With 1 seed this is exploratory:"),
        ({"v0": {}, **far(0.7, 0.8, 0.9, seeds=2)} | {"v0": {}}, "With 2 seeds this is exploratory:"),
        (far(0.70, 0.75, 0.60, 0.7004), f"v1 has {BEST} auc, 0.7502; tests distinguish it from every other variant."),
        (far(0.70, 0.75, 0.60, 0.7496), f"v1 has {BEST} auc, 0.7502; tests distinguish it from all but v3."),
        (far(0.80, 0.75, 0.60), f"v0 has {BEST} auc, 0.7998; tests distinguish it from every other variant."),
    ],
)  # fmt: skip
def test_the_conclusion(values: Values, said: str) -> None:
    """Even clear differences are not claimed with fewer than five seeds."""
    assert verdict(values).startswith(said)


def test_lower_can_be_better_or_neither() -> None:
    losses = far(5.0, 5.5, 4.5)
    assert verdict(losses, higher_is_better=False).startswith("v2 has the best (the lowest) mean auc, 4.5")
    assert verdict(losses, higher_is_better=False, comparable=False).startswith("v2 has the lowest mean auc, 4.5")


def test_equal_means_are_no_victory_and_a_name_of_words_stands_in_quotes() -> None:
    same = seeded([0.7, 0.72, 0.71, 0.69, 0.7])
    low = {seed: value - 0.1 - 0.001 * seed for seed, value in same.items()}
    said = verdict({"a b": same, "b": same, "c": low}, "b")
    assert said.startswith('"a b" and b have the best (the highest) mean auc, 0.7040; tests')


def without(values: dict[int, float], *seeds: int) -> dict[int, float]:
    return {seed: value for seed, value in values.items() if seed not in seeds}


@pytest.mark.parametrize(
    ("lost", "label", "said"),
    [
        ((5, 6, 7), False, "Some variants differ, but not all have the same seeds, so none is called the best."),
        ((4, 5, 6, 7), True, "With 1 seed in common with the baseline this is exploratory"),
        ((3, 4, 5, 6, 7), True, "With 0 seeds in common with the baseline this is exploratory"),
    ],
)
def test_pairs_count_however_many_seeds_each_has(lost: tuple[int, ...], label: bool, said: str) -> None:
    values = far(0.7, 0.8, 0.75, seeds=8)
    values = {"v0": without(values["v0"], *lost), "v1": without(values["v1"], 0, 1, 2), "v2": values["v2"]}
    assert is_exploratory(values, "v0") is label
    assert verdict(values).startswith(said)


@st.composite
def with_missing(draw: st.DrawFn) -> tuple[Values, bool]:
    """Draw variants, well apart or not, with large seed effects, of which some may be missing; higher is better."""
    seeds, unlucky = draw(st.integers(1, 8)), draw(st.integers(0, 1))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    luck = seeded(list(rng.normal(0.5, 0.1, seeds))) | {unlucky: -0.5}
    there = Values()
    missing = st.just(set[int]()) | st.just({unlucky}) | st.sets(st.sampled_from(sorted(luck))) | st.just({*luck} - {2})
    for i in range(draw(st.integers(2, 4))):
        offset = draw(st.sampled_from([-0.05, 0.05, 0.0]))
        scores = {seed: value + offset + 0.001 * float(rng.normal()) for seed, value in luck.items()}
        there[f"v{i}"] = without(scores | {2: 0.5 - 0.1 * offset}, *draw(missing))  # one seed has a different order
    return there, draw(st.booleans())


@settings(max_examples=200, deadline=None)
@given(with_missing())
def test_the_verdict_never_claims_what_the_corrected_tests_do_not(drawn: tuple[Values, bool]) -> None:
    there, higher = drawn
    said = verdict(there, higher_is_better=higher)
    assert not re.search(r"\b(nan|inf|None)\b", said)
    found = compare({"auc": there}, "auc", "v0")
    both = {("v0", label): d for label, d in found.against("auc").items()} | found.pairs("auc")
    apart = {frozenset(pair) for pair, d in both.items() if d.distinguishable}
    measured = {label for label, seeds in there.items() if seeds}
    if "distinguishable" in said:
        assert not apart
    best, is_said, rest = said.partition(" has the best ")
    if is_said:
        assert len({frozenset(there[label]) for label in measured}) == 1
        means = {label: float(np.mean([*there[label].values()])) for label in measured}
        assert means[best] == (max if higher else min)(means.values())
        rivals = {*re.findall(r"v\d", rest)} if "no test" not in rest else measured - {best}
        assert {label for label in measured - {best} if frozenset((best, label)) not in apart} == rivals


def test_a_p_value_is_on_the_right_side_of_the_limit() -> None:
    assert [p_text(p) for p in (0.31, 0.0496, 0.05, 0.0504, 0.050004, 0.0004, 1.0, None)] == [
        "0.31", "0.050", "0.050", "0.0504", "0.050004", "< 0.001", "1.00", "-"]  # fmt: skip


def test_power_in_words() -> None:
    assert power("auc", 8, 0, []) == ""
    size = detectable(5, 3) or 0
    said = power("auc", 5, 3, [Spread(0.01, "by the file"), Spread(0.02, "by these cells")])
    assert said.startswith(f"With 5 seeds, 80% of such ablations find a difference of {0.01 * size:.4f} in auc")
    assert f"by the file (standard deviation of paired differences 0.0100), and of {0.02 * size:.4f} in auc" in said
    assert re.search(rf"difference of {size:.2g} standard deviations \(.*`power` in the file", power("auc", 5, 3, []))
    assert power("auc", 1, 3, []) == "With 1 seed no difference is tested; from 5 seeds on, they are."
    shared = {
        "documents": Layer(40, 0.004**2 + 0.1, 0.1), "references": Layer(3, 0.03**2, 0.0), "others": Layer(3, 0.2, 0.2)
    }  # fmt: skip
    pilot = Spread(0.02, "by the pilot", shared)
    said = power("auc", 5, 3, [pilot])
    assert f"find a difference of {number(smallest(pilot, 5, 3))} in auc, judging by the pilot" in said
    assert "0.0200, and 0.0040 by other documents and 0.0300 by other references, which more seeds do not" in said
