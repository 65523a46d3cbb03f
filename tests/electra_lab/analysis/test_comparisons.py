"""The comparisons of a whole report, which are corrected together."""

import numpy as np
import pytest

from electra_lab.analysis import comparisons
from electra_lab.analysis.intervals import Layers, Values, difference
from tests.electra_lab.analysis import tiny


def test_layers_reach_the_metric_that_they_are_of() -> None:
    rng = np.random.default_rng(12)
    numbers = rng.normal(0, 0.1, (3, 5, 1)) + np.zeros((3, 5, 9))
    numbers[1:] += rng.normal(0, 2, (2, 1, 9))
    values: Values = tiny.values_of(numbers.mean(2))
    layers: dict[str, Layers] = {"auc": {"documents": tiny.values_of(numbers)}}
    plain = comparisons.compare({"auc": values, "loss": values}, "auc", "v0")
    found = comparisons.compare({"auc": values, "loss": values}, "auc", "v0", layers=layers)
    assert (found.against("auc")["v1"].half or 0) > 3 * (plain.against("auc")["v1"].half or 0)
    assert found.against("loss")["v1"].half == plain.against("loss")["v1"].half
    between, seeds_alone = (report.pairs("auc")["v1", "v2"] for report in (found, plain))
    assert (between.half or 0) > 3 * (seeds_alone.half or 0)


HOLM: list[tuple[list[float | None], list[float | None]]] = [
    ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
    ([0.5, 0.9], [1.0, 1.0]),
    ([], []),
    ([0.02, 0.02, 0.02], [0.06, 0.06, 0.06]),
    ([None, 0.01, None, 0.04], [None, 0.02, None, 0.04]),
    ([0.001, 0.4, 0.3], [0.003, 0.6, 0.6]),
]


@pytest.mark.parametrize(("raw", "adjusted"), HOLM)
def test_holm_by_hand(raw: list[float | None], adjusted: list[float | None]) -> None:
    assert comparisons.holm(raw) == [p if p is None else pytest.approx(p) for p in adjusted]


def test_planned_comparisons_share_four_fifths_of_the_errors_and_all_others_one_fifth() -> None:
    rng = np.random.default_rng(2)
    values = {label: tiny.seeded(list(rng.normal(i, 1, 6))) for i, label in enumerate("abcd")}
    report = comparisons.compare({"auc": values}, "auc", "b")
    planned, others = report.against("auc"), report.pairs("auc")
    assert list(planned) == ["a", "c", "d"]
    assert list(others) == [("a", "c"), ("a", "d"), ("c", "d")]
    for (label, other), found in {("c", "b"): planned["c"], **others}.items():
        mine, theirs = (list(values[key].values()) for key in (label, other))
        assert found.mean == pytest.approx(np.mean(mine) - np.mean(theirs))
    named = {("b", label): d for label, d in planned.items()}
    both = comparisons.corrected(named, others)
    for family, share in ((named, 0.8), (others, 0.2)):
        alone = comparisons.holm([d.p for d in family.values()])
        assert [both[key].holm for key in family] == pytest.approx([min(1, (p or 0) / share) for p in alone])
        assert [d.holm for d in family.values()] == [both[key].holm for key in family]
    # A family that is alone in a report has the whole error rate; untested comparisons are not a family.
    few = {key: difference({0: 1.0, 1: 1.5}, {0: 0.5, 1: 0.7}) for key in others}
    for rest in ({}, few):
        found = comparisons.corrected(named, rest)
        assert [found[key].holm for key in named] == comparisons.holm([d.p for d in planned.values()])


@pytest.mark.parametrize(("seeds", "label"), [(4, True), (5, False)])
def test_fewer_than_five_seeds_are_exploratory(seeds: int, label: bool) -> None:
    assert comparisons.is_exploratory(tiny.far(0.7, 0.8, seeds=seeds), "v0") is label
    assert comparisons.is_exploratory(tiny.far(0.7, seeds=9) | {"v1": {0: 1.0, 1: 2.0}}, "v0")
    assert comparisons.is_exploratory({"v1": tiny.far(0.7, 0.8, seeds=seeds)["v1"]}, "v0") is label


def test_an_exploratory_primary_metric_leaves_nothing_to_test() -> None:
    few, many = tiny.far(0.7, 0.9, 0.8, seeds=3), tiny.far(0.7, 0.9, 0.8, seeds=8)
    found = comparisons.compare({"auc": few, "loss": many}, "auc", "v0")
    for d in (*found.against("loss").values(), *found.pairs("auc").values()):
        assert (d.p, d.holm, d.distinguishable) == (None, None, False)
        assert d.low is not None
    assert found.against("loss")["v1"].why == "exploratory"
    assert comparisons.compare({"auc": many, "loss": few}, "auc", "v0").against("auc")["v1"].distinguishable
    assert not comparisons.is_exploratory({"v0": {0: 0.5}}, "v0")  # there is nothing to test
