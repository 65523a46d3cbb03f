"""The verdict in words claims no more than the corrected tests allow."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_lab.analysis.comparisons import compare, is_exploratory
from electra_lab.analysis.power import detectable, smallest
from electra_lab.presentation.limits import power
from electra_lab.presentation.text import number
from electra_lab.presentation.verdict import judge
from electra_lab.storage.plan import Expected, Shared
from tests.electra_lab.analysis.tiny import far, seeded


def sentences(*arguments: Any, **options: Any) -> list[str]:
    return judge(*arguments, **options).sentences


def verdict(*arguments: Any, **options: Any) -> str:
    return " ".join(sentences(*arguments, **options))


def test_a_difference_within_the_noise_is_called_nothing_else() -> None:
    said = verdict("auc", far(0.70, 0.7005, 0.6995, spread=0.01), "v0")
    assert said.startswith("Every variant has 5 seeds or more.")
    assert "is not distinguishable from seed noise (Holm p = " in said or "No variant is distinguishable" in said
    assert not re.search(r"distinguishably (better|worse)|is distinguishable from seed", said)
    assert "equal" not in said


def test_the_main_sentence_names_the_best_only_if_a_test_distinguishes_variants() -> None:
    """Otherwise it stands before the best mean, which the noise may have chosen."""
    noise = far(0.70, 0.7005, 0.6995, spread=0.01)
    for values, main in (
        (noise, "No variant is distinguishable from another."),
        (far(0.70, 0.75, 0.60), "v1 has the best (the highest) mean auc"),
        (far(0.70, 0.9, 0.3, seeds=4), "With 4 seeds this is exploratory."),
    ):
        found = judge("auc", values, "v0")
        leader = next(number for number, said in enumerate(found.sentences) if "mean auc" in said)
        assert found.main.startswith(main)
        assert found.sentences.index(found.main) <= leader


@pytest.mark.parametrize("seeds", [2, 4])
def test_what_is_exploratory_has_intervals_but_neither_tests_nor_claims(seeds: int) -> None:
    """Even for clear differences: with two seeds it used to say "distinguishable, p < 0.001" next to "exploratory"."""
    said = verdict("auc", far(0.70, 0.9, 0.3, 0.8, seeds=seeds), "v0")
    assert said.startswith(f"With {seeds} seeds this is exploratory.")
    assert re.search(r"its difference to the baseline v0, \+0\.\d+ \[\+0\.\d+, \+0\.\d+\], is not tested\.", said)
    assert not re.search(r"distinguish|Holm|p [<=]", said)


def test_what_the_tests_show_is_said() -> None:
    said = sentences("auc", far(0.70, 0.75, 0.60, 0.7004), "v0")
    assert said[0] == "Every variant has 5 seeds or more."
    assert said[1].startswith("v1 has the best (the highest) mean auc, 0.7")
    assert "is distinguishable from seed noise (Holm p < 0.001)." in said[1]
    assert "v2 (Holm p < 0.001) is distinguishably worse than the baseline" in said[2]
    assert "v3 is not distinguishable from it." in said[2]
    assert said[3] == "The best can be distinguished from every variant beyond the baseline."
    # Lower can be better.
    said = verdict("loss", far(5.0, 5.5, 4.5), "v0", higher_is_better=False)
    assert "v2 has the best (the lowest) mean loss, 4.5" in said
    assert "v1 (Holm p < 0.001) is distinguishably worse than the baseline" in said


def test_on_a_numeric_key_the_place_of_the_best_is_told() -> None:
    axis = {"v0": 0.25, "v1": 0.5, "v2": 1.0}
    inside = verdict("auc", far(0.7, 0.8, 0.75), "v0", axis=axis, key="generator.scale")
    assert "Of the values of generator.scale from 0.25 to 1 the best mean lies at 0.5, between 0.25 and 1." in inside
    edge = verdict("auc", far(0.7, 0.75, 0.8), "v0", axis=axis, key="generator.scale")
    assert "lies at 1, an end of the range: values beyond it were not tried." in edge
    assert "lies at" not in verdict("auc", far(0.7, 0.75, 0.8), "v0")


def test_what_is_missing_is_said() -> None:
    values = far(0.7, 0.8, 0.75)
    assert verdict("auc", {}, "v0") == "Nothing can be said yet: auc is missing in every cell."
    assert "there is nothing to compare" in verdict("auc", {"v0": values["v0"], "v1": {}}, "v0")
    assert "v2 has no value of auc." in verdict("auc", values | {"v2": {}}, "v0")
    assert "the baseline v0 was not measured" in verdict("auc", values | {"v0": {}}, "v0")
    shorter = values | {"v1": {s: v for s, v in values["v1"].items() if s < 3}}
    few = "v1 is not tested, with fewer than 5 seeds in common with the baseline v0."
    assert verdict("auc", shorter, "v0").startswith(few)
    assert "The means below are not all over the same seeds" in verdict("auc", shorter, "v0")
    assert "The means" not in verdict("auc", values, "v0")


def test_equal_means_are_no_victory_and_a_name_of_words_stands_in_quotes() -> None:
    values = far(0.7, 0.9)
    said = verdict("auc", {"as it was": values["v0"], "all tokens": values["v1"]}, "as it was")
    assert '"all tokens" has the best (the highest) mean auc' in said
    assert 'the baseline "as it was"' in said
    same = seeded([0.7, 0.72, 0.71])
    said = verdict("auc", {"a": same, "b": same, "c": seeded([0.6, 0.61, 0.62])}, "b")
    assert "b (the baseline) has the best (the highest) mean auc, 0.7100, as has a." in said


def without(values: dict[int, float], *seeds: int) -> dict[int, float]:
    return {seed: value for seed, value in values.items() if seed not in seeds}


@pytest.mark.parametrize(
    ("theirs", "label", "said"),
    [
        ((5, 6, 7), False, "v1 is not tested, with fewer than 5 seeds in common with the baseline v0."),
        ((4, 5, 6, 7), True, "As a variant shares only one seed with the baseline v0, this is exploratory."),
        ((3, 4, 5, 6, 7), True, "As a variant shares no seed with the baseline v0, this is exploratory."),
        ((), False, "Every variant has 5 seeds or more."),
    ],
)
def test_few_pairs_are_exploratory_however_many_seeds_each_has(theirs: tuple[int, ...], label: bool, said: str) -> None:
    values = far(0.7, 0.8, 0.75, seeds=8)
    values = {"v0": without(values["v0"], *theirs), "v1": without(values["v1"], 0, 1, 2), "v2": values["v2"]}
    assert is_exploratory(values, "v0") is label
    assert sentences("auc", values, "v0")[0] == said
    apart = {"v0": {0: 0.1, 1: 0.2}, "v1": {2: 0.2, 3: 0.3}}
    found = sentences("auc", apart, "v0")
    assert (len(found), found[1]) == (3, "There is no seed that all have, so none is called the best.")


LUCK = seeded([0.50, 0.70, 0.71, 0.69, 0.72, 0.70])


def beside(luck: dict[int, float], by: float) -> dict[int, float]:
    """Return a variant that is better by about `by` with every seed."""
    return {seed: value + by * (1 + 0.01 * (seed % 3)) for seed, value in luck.items()}


def changed(scores: dict[int, float], change: Callable[[float], float]) -> dict[int, float]:
    return {seed: change(value) for seed, value in scores.items()}


def test_losing_an_unlucky_seed_wins_nothing() -> None:
    values = {"base": LUCK, "x": without(beside(LUCK, -0.02), 0), "y": beside(LUCK, 0.01)}
    said = sentences("auc", values, "base")
    assert len(said) == 5
    assert said[1].startswith("y has the best (the highest) mean auc over the 5 seeds that all have, 0.7141;")
    assert "base over the 6 seeds that both have, +0.0101 [+0.0100, +0.0102], is distinguishable" in said[1]
    assert said[2] == "x (Holm p < 0.001) is distinguishably worse than the baseline."
    assert said[3].startswith("The best can be distinguished from every variant")
    assert said[4].startswith("The means below are not all over the same seeds")
    losses = {label: changed(scores, lambda value: -value) for label, scores in values.items()}
    assert sentences("loss", losses, "base", higher_is_better=False)[1].startswith("y has the best (the lowest)")


def test_no_best_is_named_against_what_more_seeds_show() -> None:
    x = {**beside(LUCK, -0.02), 5: LUCK[5] + 0.001}
    x = {**x, **{seed: 0.68 - 0.0001 * seed for seed in range(6, 12)}}
    base = {**LUCK, **dict.fromkeys(range(6, 12), 0.7)}
    said = sentences("auc", {"base": base, "x": x, "z": {5: 0.5}}, "base")
    assert said[1].startswith("x has the highest mean auc over the one seed that all have, but base is distinguishably")
    assert said[2] == "x (Holm p < 0.001) is distinguishably worse than the baseline."  # z is not tested
    assert "best can" not in " ".join(said)

    x[5] = LUCK[5]
    said = sentences("auc", {"base": base, "x": x, "z": {5: 0.5}}, "base")
    assert said[1] == "base (the baseline) has the best (the highest) mean auc over the one seed that all have, 0.7000."


@st.composite
def with_missing(draw: st.DrawFn) -> tuple[dict[str, dict[int, float]], dict[str, dict[int, float]], bool]:
    """Draw variants, well apart or not, with large seed effects: (all values, available ones, higher is better)."""
    seeds, unlucky = draw(st.integers(1, 8)), draw(st.integers(0, 1))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    luck = seeded(list(rng.normal(0.5, 0.1, seeds))) | {unlucky: -0.5}
    values, there = dict[str, dict[int, float]](), dict[str, dict[int, float]]()
    missing = st.just(set[int]()) | st.just({unlucky}) | st.sets(st.sampled_from(sorted(luck))) | st.just({*luck} - {2})
    for i in range(draw(st.integers(2, 4))):
        offset = draw(st.sampled_from([-0.05, 0.05, 0.0]))
        scores = {seed: value + offset + 0.001 * float(rng.normal()) for seed, value in luck.items()}
        values[f"v{i}"] = scores | {2: 0.5 - 0.1 * offset}  # one seed has a different order
        there[f"v{i}"] = without(values[f"v{i}"], *draw(missing))
    return values, there, draw(st.booleans())


@settings(max_examples=200, deadline=None)
@given(with_missing())
def test_no_variant_is_called_best_that_a_test_calls_worse(
    drawn: tuple[dict[str, dict[int, float]], dict[str, dict[int, float]], bool],
) -> None:
    values, there, higher = drawn
    said = sentences("auc", there, "v0", higher)
    found = compare({"auc": there}, "auc", "v0")
    planned = {label: d for label, d in found.against("auc").items() if d.distinguishable}
    better = {label for label, d in planned.items() if ((d.mean or 0) > 0) == higher}
    if len(said) > 1 and (named := re.match(r"(v\d)(?: \(the baseline\))? has the best [^;]*?", said[1])):
        best = {named[1], *re.findall(r"v\d", said[1].partition(", as has ")[2].partition(";")[0])}
        assert not best & (planned.keys() - better)
        assert not ("v0" in best and better)
        if any("The best can be distinguished from every variant" in sentence for sentence in said):
            pairs, sign = found.pairs("auc"), 1 if higher else -1
            others = [other for other in there.keys() - {"v0", named[1]} if there[other]]
            assert all(sign * (pairs[named[1], other].mean or 0) > 0 for other in others)
    # With complete data, the best has the best plain mean, and common seeds are not mentioned.
    whole = verdict("auc", values, "v0", higher)
    assert not re.search("that all have|that both have|none is called|shares|The means below", whole)
    if len(values) > 1:
        named = re.search(r"(v\d)(?: \(the baseline\))? has the best", whole)
        means = {label: float(np.mean(list(scores.values()))) for label, scores in values.items()}
        assert named
        assert means[named[1]] == pytest.approx((max if higher else min)(means.values()), rel=1e-12)


@given(
    st.lists(st.lists(st.floats(0.5, 1).map(lambda v: round(v, 4)), min_size=0, max_size=6), min_size=1, max_size=5),
    st.booleans(),
)
def test_the_verdict_never_claims_what_the_corrected_tests_do_not(runs: list[list[float]], higher: bool) -> None:
    values = {f"v{i}": seeded(run) for i, run in enumerate(runs)}
    said = verdict("auc", values, "v0", higher, {f"v{i}": float(i) for i in range(len(runs))}, "key")
    claims = re.findall(r"(v\d) \(Holm [^)]*\)(?=[^.;]*distinguishably (?:better|worse))", said)
    planned = compare({"auc": values}, "auc", "v0").against("auc")
    assert all(planned[label].distinguishable for label in claims)
    if " is distinguishable from seed noise" in said:
        best = re.search(r"(v\d)[^.]* has the best", said)
        assert best
        assert planned[best[1]].distinguishable
    assert not re.search(r"\b(nan|inf|None)\b", said)


def test_few_seeds_of_the_baseline_are_not_said_of_the_others() -> None:
    values = far(0.7, 0.9, 0.8, seeds=12)
    said = verdict("auc", values | {"v0": {seed: values["v0"][seed] for seed in (0, 1)}}, "v0")
    assert said.startswith("As a variant shares only 2 seeds with the baseline v0, this is exploratory.")
    assert "v1 has the highest mean auc over the 2 seeds that all have; with so few, none is called the best." in said
    assert "distinguish" not in said


def test_variants_that_are_not_tested_are_not_called_alike() -> None:
    few = {**far(0.7, 0.6, 0.6997), "few": {0: 0.5, 1: 0.51, 2: 0.49}}
    said = verdict("auc", few, "v0")
    assert "few is not tested" in said
    assert "v2 is not distinguishable from it" in said
    assert "few is not distinguishable" not in said
    alike = {**far(0.7, 0.7001, 0.7002, spread=0.01), "few": few["few"]}
    assert "No tested variant is distinguishable" in verdict("auc", alike, "v0").replace("other ", "")


def test_a_rival_that_differs_alike_with_every_seed_lacks_no_seeds() -> None:
    luck = [0.70, 0.71, 0.69, 0.72, 0.705]
    rows = {"v0": [0.5, 0.52, 0.49, 0.5, 0.51], "v1": luck, "v2": [v - 0.125 for v in luck]}
    values = {label: changed(seeded(row), lambda value: round(value * 1024) / 1024) for label, row in rows.items()}
    assert "The best is not tested against v2, as the difference is the same with" in verdict("auc", values, "v0")


def test_power_in_words() -> None:
    assert power("auc", 8, 0, []) == ""
    size = detectable(5, 3) or 0
    known = [Expected(sd=0.01, source="by the file"), Expected(sd=0.02, source="by these cells")]
    said = power("auc", 5, 3, known)
    assert said.startswith(f"With 5 seeds, 80% of such ablations find a difference of {0.01 * size:.4f} in auc")
    assert f"by the file (standard deviation of paired differences 0.0100), and of {0.02 * size:.4f} in auc" in said
    assert re.search(rf"difference of {size:.2g} standard deviations \(.*`power` in the file", power("auc", 5, 3, []))
    assert power("auc", 1, 3, []) == "With 1 seed no difference is tested; from 5 seeds on, they are."
    shared = {
        "documents": Shared(units=40, variance=0.004**2, noise=0.1),
        "references": Shared(units=3, variance=0.03**2, noise=0.0),
        "others": Shared(units=3, variance=0.0, noise=0.2),
    }
    pilot = Expected(sd=0.02, source="by the pilot", shared=shared)
    said = power("auc", 5, 3, [pilot])
    assert f"find a difference of {number(smallest(pilot, 5, 3))} in auc, judging by the pilot" in said
    assert "0.0200, and 0.0040 by other documents and 0.0300 by other references, which more seeds do not" in said
