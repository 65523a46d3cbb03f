"""The claims of whole reports, by simulation: how often they are wrong, and what they can find."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from electra_lab.analysis.bimodality import two_groups
from electra_lab.analysis.comparisons import Claims, claims, contrasts
from electra_lab.analysis.power import detectable, sentence, smallest, spread
from electra_lab.analysis.statistics import ALPHA, Layers, Values, difference, number
from electra_lab.analysis.variance import layer
from electra_lab.storage.plan import Expected, Shared

Numbers = np.ndarray[Any, np.dtype[np.float64]]


def values_of(numbers: Numbers) -> dict[str, dict[int, float]]:
    """Name Float64[V S] by variant and seed."""
    return {f"v{i}": dict(enumerate(each)) for i, each in enumerate(numbers.tolist())}


def layer_of(numbers: Numbers) -> dict[str, dict[int, list[float]]]:
    """Name Float64[V S U] by variant and seed."""
    return {f"v{i}": dict(enumerate(each)) for i, each in enumerate(numbers.tolist())}


def within(share: float, expected: tuple[float, float], trials: int) -> bool:
    """Allow for three standard deviations of the simulation's own luck."""
    low, high = expected
    luck = 3 * math.sqrt(low * (1 - low) / trials)
    return low - luck <= share <= high + luck


# Documents and references


def sides(ours: Numbers, theirs: Numbers) -> dict[str, tuple[dict[int, list[float]], dict[int, list[float]]]]:
    """Name Float64[S D R] by what its last axes are."""
    means = {"documents": 2, "references": 1}
    return {
        name: (dict(enumerate(ours.mean(axis).tolist())), dict(enumerate(theirs.mean(axis).tolist())))
        for name, axis in means.items()
    }


@pytest.mark.parametrize("documents", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("references", [0.0, 0.02, 0.1])
def test_intervals_cover_other_seeds_documents_and_references(documents: float, references: float) -> None:
    """All seeds share 60 documents and 3 references; what a difference is by others is another number."""
    rng, trials, covered, naive = np.random.default_rng(7), 400, 0, 0
    for _ in range(trials):
        by_document = rng.normal(0, documents, (1, 60, 1)) / math.sqrt(3)
        by_reference = rng.normal(0, references, (1, 1, 3))
        noise = rng.normal(0, 0.02, (5, 1, 1)) + rng.normal(0, 0.1, (5, 60, 3))
        ours = 0.7 + 0.05 + by_document + by_reference + noise
        theirs = 0.7 + rng.normal(0, 0.1, (5, 60, 3))
        means = [dict(enumerate(each.mean((1, 2)).tolist())) for each in (ours, theirs)]
        found, alone = difference(*means, sides(ours, theirs)), difference(*means)
        assert found.low is not None
        assert found.high is not None
        assert alone.low is not None
        assert alone.high is not None
        assert found.mean == alone.mean
        covered += found.low <= 0.05 <= found.high
        naive += alone.low <= 0.05 <= alone.high
    # Three references that look alike may still not be, so intervals are wider than they need be where they are.
    assert within(covered / trials, (0.94, 0.99), trials), covered
    if documents == 1.0 or references:
        assert naive / trials < 0.9  # intervals over seeds alone promise too much


@pytest.mark.parametrize("seeds", [5, 8])
def test_the_p_value_is_that_of_an_integral(seeds: int) -> None:
    """Over the variances that the data leave possible, one after the other, by scipy."""
    rng = np.random.default_rng(1)
    numbers = rng.normal(0, 1, (seeds, 1)) + rng.normal(0, 2, (1, 6)) + rng.normal(0, 0.5, (seeds, 6)) + 1
    ours, zeros = dict(enumerate(numbers.tolist())), {seed: [0.0] * 6 for seed in range(seeds)}
    found = difference(dict(enumerate(numbers.mean(1))), dict.fromkeys(range(seeds), 0.0), {"documents": (ours, zeros)})
    of_seeds, of_units = numbers.mean(1) - numbers.mean(), numbers.mean(0) - numbers.mean()
    rest = numbers - numbers.mean() - of_seeds[:, None] - of_units
    squares = [6 * (of_seeds**2).sum(), seeds * (of_units**2).sum(), (rest**2).sum()]
    freedoms = [seeds - 1, 5, 5 * (seeds - 1)]
    drawn = np.random.default_rng(2)
    by_seeds, by_units, noise = (
        square / drawn.chisquare(df, 1_000_000) / (6 * seeds) for square, df in zip(squares, freedoms, strict=True)
    )
    variances = by_seeds + np.maximum(0, by_units - noise)
    p = float(np.mean(2 * stats.norm.sf(abs(numbers.mean()) / np.sqrt(variances))))
    assert found.p == pytest.approx(p, rel=0.02)
    assert found.high is not None
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
    """One that lacks them must not make the interval as narrow as if nobody had them."""
    rng = np.random.default_rng(4)
    numbers = rng.normal(0, 1, (2, 5, 9)) + rng.normal(0, 3, (2, 1, 9))
    ours, theirs = (dict(enumerate(each.tolist())) for each in numbers)
    means = [{seed: float(np.mean(each)) for seed, each in side.items()} for side in (ours, theirs)]
    alone = difference(*means)
    lacking = (ours, theirs)[side]
    for left in (5, 4, 3, 2):
        found = difference(*means, {"documents": (ours, theirs)})
        expected = layer((np.array([ours[s] for s in range(left)]) - [theirs[s] for s in range(left)]) / alone.error)
        assert found.layers == {"documents": expected}
        assert (found.half or 0) > 1.5 * (alone.half or 0)
        del lacking[left - 1]
    assert difference(*means, {"documents": (ours, theirs)}) == alone  # one seed does not tell its share
    lacking.clear()
    assert difference(*means, {"documents": (ours, theirs)}) == alone


def test_documents_of_other_texts_are_not_compared() -> None:
    rng = np.random.default_rng(4)
    ours, theirs = (dict(enumerate(rng.normal(0, 1, (5, n)).tolist())) for n in (9, 8))
    means = [{seed: float(np.mean(each)) for seed, each in side.items()} for side in (ours, theirs)]
    assert difference(*means, {"documents": (ours, theirs)}) == difference(*means)
    values = {part: {"base": means[0], "x": means[1]} for part in ("a", "b")}
    layers = {
        part: {"documents": {label: dict(enumerate(rng.normal(0, 1, (5, n)).tolist())) for label in ("base", "x")}}
        for part, n in (("a", 9), ("b", 8))
    }
    assert not contrasts(values, "base", layers)["x", "a", "b"].layers


# Whole reports


def report(rng: np.random.Generator, variants: int = 4, metrics: int = 3, planted: float = 0.0) -> Claims:
    """Return the claims about metrics of which nothing differs, but for what is planted in the last variant."""
    luck = rng.normal(0, 1, (1, 1, 5))
    common = rng.normal(0, 0.7, (1, variants, 5))  # metrics of one run resemble each other
    numbers = luck + common + rng.normal(0, 0.7, (metrics + 3, variants, 5))
    numbers[:, -1] += planted
    names = ["primary", *(f"other{i}" for i in range(metrics - 1)), "part1", "part2", "part3"]
    values = {name: values_of(each) for name, each in zip(names, numbers, strict=True)}
    return claims(values, "primary", "v0", [["part1", "part2", "part3"]])


def test_a_whole_report_seldom_makes_a_false_claim() -> None:
    """Three quantities, three references, four variants. Corrected by quantity, one in eight did."""
    rng, trials = np.random.default_rng(5), 400
    wrong = raw = planned = 0
    for _ in range(trials):
        found = report(rng)._found
        wrong += any(d.distinguishable for d in found.values())
        raw += any(d.p is not None and d.p <= ALPHA for d in found.values())
        planned += any(d.distinguishable for key, d in found.items() if key[:2] == ("against", "primary"))
    assert wrong / trials <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / trials)
    assert raw / trials > 0.3
    assert planned <= wrong


@pytest.mark.parametrize(("seeds", "apart"), [(5, 0.01), (8, 0.02), (12, 0.02)])
def test_so_does_one_whose_references_differ(seeds: int, apart: float) -> None:
    """Each variant is a little better or worse by each of three, and by others it would be another one.

    With degrees of freedom by Satterthwaite (1946), up to one in nine did.
    """
    rng, trials, wrong = np.random.default_rng(13), 250, 0
    for _ in range(trials):
        by_reference = rng.normal(0, apart, (4, 1, 1, 3))
        by_reference -= by_reference[:1]  # the baseline is what the others are compared with
        parts = by_reference + rng.normal(0, 0.015, (4, seeds, 1, 1)) + rng.normal(0, 0.03, (4, seeds, 40, 3))
        references = {"references": layer_of(parts.mean(2))}
        documents = {"documents": layer_of(parts.mean(3))}
        found = claims({"mean": values_of(parts.mean((2, 3)))}, "mean", "v0", layers={"mean": references | documents})
        wrong += any(d.distinguishable for d in found.against("mean").values())
    assert wrong / trials <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / trials)


def test_contrasts_of_references_are_about_other_documents() -> None:
    """What a variant gains by one reference more than by another may be there in these documents alone."""
    rng, trials, wrong, alone, names = np.random.default_rng(14), 80, 0, 0, ["part1", "part2", "part3"]
    for _ in range(trials):
        by_document = rng.normal(0, 0.2, (4, 1, 40, 3))
        parts = by_document + rng.normal(0, 0.015, (4, 5, 1, 1)) + rng.normal(0, 0.03, (4, 5, 40, 3))
        values = {name: values_of(parts.mean(2)[..., i]) for i, name in enumerate(names)}
        layers: dict[str, Layers] = {name: {"documents": layer_of(parts[..., i])} for i, name in enumerate(names)}
        for known in (layers, {}):
            found = claims(values, "part1", "v0", [names], known).contrasts(names)
            false = any(d.p is not None and d.p <= 0.01 for d in found.values())
            wrong, alone = (wrong + false, alone) if known else (wrong, alone + false)
    assert wrong / trials <= 9 * 0.01 + 3 * math.sqrt(0.09 * 0.91 / trials)
    assert alone / trials > 0.5


def test_the_planned_comparisons_have_most_of_the_power() -> None:
    rng, primary, others = np.random.default_rng(6), 0, 0
    for _ in range(100):
        found = report(rng, planted=3.5)
        primary += found.against("primary")["v3"].distinguishable
        others += found.against("other0")["v3"].distinguishable
    assert primary > 2 * others
    assert primary > 50


def test_comparisons_are_found_by_what_they_compare() -> None:
    found = report(np.random.default_rng(8), planted=2.0)
    assert found.against("primary").keys() == found.against("other1").keys() == {"v1", "v2", "v3"}
    assert found.pairs("primary").keys() == {(a, b) for a in ("v1", "v2", "v3") for b in ("v1", "v2", "v3") if a != b}
    assert found.pairs("other1") == {}
    one, other = found.pairs("primary")["v3", "v1"], found.pairs("primary")["v1", "v3"]
    assert (one.mean, one.low, one.high) == (-(other.mean or 0), -(other.high or 0), -(other.low or 0))
    assert one.holm == other.holm
    contrasts = found.contrasts(["part1", "part3"])
    assert contrasts.keys() == {(label, "part1", "part3") for label in ("v1", "v2", "v3")}
    assert found.contrasts(["part1"]) == {}


# Seeds in two groups


def broken_out(rng: np.random.Generator, rates: tuple[float, ...], gap: float, seeds: int) -> Values:
    return values_of(rng.normal(size=(len(rates), seeds)) + gap * (rates > rng.random((len(rates), seeds)).T).T)


@pytest.mark.parametrize("rates", [(0.2, 0.5), (0.0, 0.5, 1.0), (0.2, 0.5, 0.8, 0.5), (0.1, 0.3, 0.5, 0.7, 0.9)])
@pytest.mark.parametrize("gap", [4.0, 10.0])
def test_where_only_some_seeds_break_out_intervals_hold_or_a_warning_comes(
    rates: tuple[float, ...], gap: float
) -> None:
    rng, trials, good, total = np.random.default_rng(9), 250, 0, 0
    for _ in range(trials):
        values = broken_out(rng, rates, gap, 5)
        warned = two_groups(values) is not None
        for label, rate in zip(list(values)[1:], rates[1:], strict=True):
            found = difference(values[label], values["v0"])
            assert found.low is not None
            assert found.high is not None
            good += warned or found.low <= gap * (rate - rates[0]) <= found.high
            total += 1
    assert good / total >= 0.9


def test_a_warning_names_the_place_and_the_variants_that_are_torn() -> None:
    values = {
        "a": [0.53, 0.54, 0.71, 0.72, 0.70],
        "b": [0.52, 0.53, 0.54, 0.53, 0.52],
        "c": [0.7, 0.71, 0.72, 0.7, 0.71],
    }
    found = two_groups({label: dict(enumerate(each)) for label, each in values.items()})
    assert found is not None
    assert found[0] == pytest.approx(0.62)
    assert found[1] == ["a"]
    # Variants that are far apart, each by itself, are what an ablation looks for.
    assert two_groups({label: dict(enumerate(each)) for label, each in values.items() if label != "a"}) is None
    assert two_groups({"a": {0: 0.5, 1: 0.5}, "b": {}}) is None
    assert two_groups({"a": dict.fromkeys(range(9), 0.5)}) is None


@pytest.mark.parametrize(("unit", "shift"), [(1e-200, 0.0), (1e200, 0.0), (1e-9, 1.0), (1e-6, -1e3), (3.0, 7.0)])
def test_two_groups_are_the_same_in_any_unit(unit: float, shift: float) -> None:
    rng = np.random.default_rng(0)
    for torn in (False, True):
        for _ in range(20):
            values = rng.normal(size=(2, 6)) + torn * 9.0 * (np.arange(6) % 2)
            here, there = (two_groups(values_of(each)) for each in (values, values * unit + shift))
            assert (here is None) == (there is None)
            if here and there:
                assert (there[0] - shift) / unit == pytest.approx(here[0], rel=1e-4)
                assert there[1] == here[1]


@pytest.mark.parametrize("step", [0.0, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("shape", [(1, 5), (4, 5), (3, 12), (8, 5)])
def test_normal_numbers_are_seldom_taken_for_two_groups(shape: tuple[int, int], step: float) -> None:
    """Nor are those of variants that differ by more and more: by the numbers of all seeds together, 8 of 10 were."""
    rng, apart = np.random.default_rng(10), step * np.arange(shape[0])[:, None]
    warned = np.mean([two_groups(values_of(rng.normal(size=shape) + apart)) is not None for _ in range(500)])
    assert warned <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / 500)


# Power


@pytest.mark.parametrize(("seeds", "variants"), [(5, 4), (8, 3)])
def test_four_of_five_ablations_find_what_they_are_said_to_find(seeds: int, variants: int) -> None:
    rng, trials, hits = np.random.default_rng(11), 400, 0
    size = detectable(seeds, variants - 1)
    assert size is not None
    for _ in range(trials):
        # The others are as the baseline, so Holm's procedure does not go beyond its first level.
        numbers = rng.normal(0, math.sqrt(0.5), (variants, seeds))
        numbers[1] += size
        found = claims({"auc": values_of(numbers)}, "auc", "v0").against("auc")["v1"]
        hits += found.distinguishable
    assert abs(hits / trials - 0.8) < 3.5 * math.sqrt(0.8 * 0.2 / trials)


def test_more_seeds_find_less_and_more_comparisons_more() -> None:
    sizes = [detectable(seeds, 3) or math.inf for seeds in (5, 6, 8, 12, 20, 100)]
    assert sizes == sorted(sizes, reverse=True)
    assert [detectable(5, n) for n in (1, 2, 4, 8)] == sorted(detectable(5, n) or 0 for n in (1, 2, 4, 8))
    assert detectable(4, 3) is None


def test_the_spread_is_pooled_over_the_differences_that_have_one() -> None:
    ours = {"a": [0.1, 0.2, 0.3, 0.4, 0.6], "b": [0.3, 0.1, 0.2, 0.5, 0.1], "c": [0.2]}
    zeros = dict.fromkeys(range(5), 0.0)
    found = [difference(dict(enumerate(each)), zeros) for each in ours.values()]
    known = spread(found, "by these cells")
    assert known is not None
    assert known.sd == pytest.approx(math.sqrt((np.var(ours["a"], ddof=1) + np.var(ours["b"], ddof=1)) / 2))
    assert (known.source, known.shared) == ("by these cells", {})
    assert spread(found[2:], "") is None


def test_the_spread_by_seeds_is_not_that_by_documents() -> None:
    """More seeds lessen the one alone; what is known of 5 seeds foretells 20."""
    rng, pooled = np.random.default_rng(15), list[Expected]()
    for _ in range(200):
        numbers = rng.normal(0, 0.01, (5, 1)) + rng.normal(0, 0.05, (1, 10)) + rng.normal(0, 0.03, (5, 10))
        units = {"documents": (dict(enumerate(numbers.tolist())), {seed: [0.0] * 10 for seed in range(5)})}
        known = spread([difference(dict(enumerate(numbers.mean(1))), dict.fromkeys(range(5), 0.0), units)], "")
        assert known is not None
        pooled.append(known)
    sd, shared = (math.sqrt(np.mean([each.sd**2 for each in pooled])), [each.shared["documents"] for each in pooled])
    assert sd == pytest.approx(math.sqrt(0.01**2 + 0.03**2 / 10), rel=0.1)
    assert np.mean([each.variance for each in shared]) == pytest.approx(0.05**2 / 10, rel=0.15)
    assert np.mean([each.noise for each in shared]) == pytest.approx(0.03**2 / 10, rel=0.1)
    assert {each.units for each in shared} == {10}


@pytest.mark.parametrize(("seeds", "apart"), [(5, 0.004), (8, 0.02)])
def test_four_of_five_find_it_where_references_differ(seeds: int, apart: float) -> None:
    rng, trials, hits = np.random.default_rng(16), 400, 0
    shared = {"references": Shared(units=3, variance=apart**2 / 3, noise=0.003**2 / 3)}
    known = Expected(sd=math.sqrt(0.01**2 + 0.003**2 / 3), source="", shared=shared)
    size, plain = smallest(known, seeds, 2), smallest(known.model_copy(update={"shared": {}}), seeds, 2)
    assert size is not None
    assert plain is not None
    assert size > 1.05 * plain
    for _ in range(trials):
        numbers = rng.normal(0, apart, (1, 3)) + rng.normal(0, 0.01, (seeds, 1)) + rng.normal(0, 0.003, (seeds, 3))
        units = {"references": (dict(enumerate((numbers + size).tolist())), {s: [0.0] * 3 for s in range(seeds)})}
        found = difference(dict(enumerate(numbers.mean(1) + size)), dict.fromkeys(range(seeds), 0.0), units)
        hits += found.p is not None and found.p <= 0.04 / 2
    assert abs(hits / trials - 0.8) < 3.5 * math.sqrt(0.8 * 0.2 / trials)


def test_power_in_words() -> None:
    size = detectable(5, 3) or 0
    known = [Expected(sd=0.01, source="by the file"), Expected(sd=0.02, source="by these cells")]
    said = sentence("auc", 5, 3, known)
    assert said == (
        f"With 5 seeds, 80% of such ablations find a difference of {0.01 * size:.4f} in auc, judging by the file "
        f"(standard deviation of paired differences 0.0100), and of {0.02 * size:.4f} in auc, judging by these cells "
        "(standard deviation of paired differences 0.0200)."
    )
    assert f"find a difference of {size:.2g} standard deviations (of the" in sentence("auc", 5, 3, [])
    assert "only pilot runs can tell: `power` in the file of the ablation." in sentence("auc", 5, 3, [])
    assert sentence("auc", 1, 3, []) == "With 1 seed no difference is tested; from 5 seeds on, they are."
    shared = {
        "documents": Shared(units=40, variance=0.004**2, noise=0.1),
        "references": Shared(units=3, variance=0.03**2, noise=0.0),
        "others": Shared(units=3, variance=0.0, noise=0.2),
    }
    known = [Expected(sd=0.02, source="by the pilot", shared=shared)]
    found = number(smallest(known[0], 5, 3))
    assert sentence("auc", 5, 3, known).endswith(
        f"find a difference of {found} in auc, judging by the pilot (standard deviation of paired differences 0.0200, "
        "and 0.0040 by other documents and 0.0300 by other references, which more seeds do not lessen)."
    )


def test_layers_reach_the_metric_that_they_are_of() -> None:
    rng = np.random.default_rng(12)
    numbers = rng.normal(0, 0.1, (2, 5, 1)) + np.concatenate(
        [np.zeros((1, 5, 9)), rng.normal(0, 2, (1, 1, 9)).repeat(5, 1)]
    )
    values: Values = values_of(numbers.mean(2))
    layers: dict[str, Layers] = {"auc": {"documents": layer_of(numbers)}}
    plain = claims({"auc": values, "loss": values}, "auc", "v0")
    found = claims({"auc": values, "loss": values}, "auc", "v0", layers=layers)
    assert (found.against("auc")["v1"].half or 0) > 3 * (plain.against("auc")["v1"].half or 0)
    assert found.against("loss")["v1"].half == plain.against("loss")["v1"].half
