"""What is not tested is neither distinguishable nor alike, and the words about it give the right reason."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate

from electra_lab.analysis.bimodality import two_groups
from electra_lab.analysis.comparisons import claims
from electra_lab.analysis.interaction import sentences as by_reference
from electra_lab.analysis.power import sentence, spread
from electra_lab.analysis.statistics import Values, difference, is_exploratory
from electra_lab.analysis.verdict import sentences
from tests.electra_lab.presentation.test_statistics import far, seeded


def test_an_exploratory_primary_metric_leaves_nothing_to_test() -> None:
    """A report whose primary metric has too few seeds tests no other metric in its place, nor other pairs."""
    few, many = far(0.7, 0.9, 0.8, seeds=3), far(0.7, 0.9, 0.8, seeds=8)
    found = claims({"auc": few, "loss": many}, "auc", "v0")
    for d in (*found.against("loss").values(), *found.pairs("auc").values()):
        assert (d.p, d.holm, d.distinguishable) == (None, None, False)
        assert d.low is not None
    assert found.against("loss")["v1"].why == "exploratory"
    assert claims({"auc": many, "loss": few}, "auc", "v0").against("auc")["v1"].distinguishable
    assert not is_exploratory({"v0": {0: 0.5}}, "v0")  # nothing is there to be tested


def test_few_seeds_of_the_baseline_are_not_said_of_the_others() -> None:
    values = far(0.7, 0.9, 0.8, seeds=12)
    values["v0"] = {seed: values["v0"][seed] for seed in (0, 1)}
    said = " ".join(sentences("auc", values, "v0"))
    assert said.startswith("As a variant shares only 2 seeds with the baseline v0, this is exploratory.")
    assert "v1 has the highest mean auc over the 2 seeds that all have; with so few, none is called the best." in said
    assert "distinguish" not in said


def test_variants_that_are_not_tested_are_not_called_alike() -> None:
    values = far(0.7, 0.6, 0.6997)
    few = {**values, "few": {0: 0.5, 1: 0.51, 2: 0.49}}
    said = " ".join(sentences("auc", few, "v0"))
    assert "few is not tested" in said
    assert "v2 is not distinguishable from it" in said
    assert "few is not distinguishable" not in said
    alike = {**far(0.7, 0.7001, 0.7002, spread=0.01), "few": few["few"]}
    assert "No tested variant is distinguishable" in " ".join(sentences("auc", alike, "v0")).replace("other ", "")
    parts: dict[str, Values] = {"a": alike, "b": {k: {s: v + 0.01 for s, v in each.items()} for k, each in few.items()}}
    luck = np.random.default_rng(0)
    parts = {a: {k: {s: v + luck.normal(0, 0.1) for s, v in e.items()} for k, e in p.items()} for a, p in parts.items()}
    found = claims({"auc": parts["a"], **parts}, "auc", "v0", [list(parts)])
    assert "No tested difference to the baseline is" in " ".join(by_reference(parts, found, "v0"))


def test_a_rival_that_differs_alike_with_every_seed_lacks_no_seeds() -> None:
    luck = [0.70, 0.71, 0.69, 0.72, 0.705]
    values = {"v0": seeded([0.5, 0.52, 0.49, 0.5, 0.51]), "v1": seeded(luck), "v2": seeded([v - 0.125 for v in luck])}
    values = {k: {s: round(v * 1024) / 1024 for s, v in each.items()} for k, each in values.items()}
    assert "The best is not tested against v2, from which it differs alike with every seed." in sentences(
        "auc", values, "v0"
    )


@pytest.mark.parametrize(("seeds", "comparisons"), [(5, 0), (8, 0)])
def test_without_a_comparison_there_is_no_word_about_power(seeds: int, comparisons: int) -> None:
    assert sentence("auc", seeds, comparisons, []) == ""


def test_deviations_are_pooled_by_their_degrees_of_freedom() -> None:
    """Two seeds know a deviation far worse than twelve do."""
    rng = np.random.default_rng(0)
    ours = [dict(enumerate(rng.normal(0, size, n).tolist())) for size, n in ((3.0, 2), (1.0, 12), (2.0, 5))]
    found = spread([difference(each, dict.fromkeys(each, 0.0)) for each in ours], "")
    squares = [sum((v - np.mean(list(each.values()))) ** 2 for v in each.values()) for each in ours]
    assert found is not None
    assert found.sd == pytest.approx(math.sqrt(sum(squares) / (1 + 11 + 4)))


def test_a_small_p_value_is_that_of_an_integral() -> None:
    """Over the two variances that the data leave possible, by scipy's quadrature; no interaction with the seeds."""
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


@pytest.mark.parametrize("spread", [1e-9, 1e-6, 1.0])
def test_variants_far_apart_do_not_make_two_groups_of_their_rounding(spread: float) -> None:
    rng, warned = np.random.default_rng(3), 0
    for _ in range(100):
        numbers = np.array([[0.5], [0.9]]) + spread * rng.normal(size=(2, 5))
        warned += two_groups({f"v{i}": dict(enumerate(each)) for i, each in enumerate(numbers.tolist())}) is not None
    assert warned <= 4
