"""The charts of an ablation: what is plotted is what the cells have, in the colour and marker of their variant."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from electra_lab.analysis.intervals import difference
from electra_lab.analysis.results import Results, read
from electra_lab.presentation import sweep_figures as figures
from electra_lab.presentation.charts import SERIES, SOFT, look
from electra_lab.presentation.text import short
from tests.electra_lab.presentation.axes import Drawn, lines, marks, number_of, overlaps, ticks
from tests.electra_lab.presentation.synthetic import GRID, SCALES, add_references, write_folder

# Of two variants over three seeds: each has a standard deviation of 0.1, and so have their differences.
BY_HAND = {0: [0.5, 0.6, 0.7], 1: [0.7, 0.9, 0.8], 2: [0.4, 0.5, 0.45]}
HALF = 4.302652729911275 * 0.1 / math.sqrt(3)  # of the 95% interval: t(0.975, 2) s / sqrt(n)
TWO = {f"generator.scale={scale}": {"generator.scale": scale} for scale in (0.25, 0.5)}


def by_hand(variant: int, seed: int) -> float:
    return BY_HAND[variant][seed]


def made(folder: Path, changes: Mapping[str, Mapping[str, Any]], keys: Sequence[str] = (), **more: Any) -> Results:
    options: dict[str, Any] = {"seeds": (0, 1, 2), "scores": by_hand} | more
    return read(write_folder(folder, changes, keys=keys, **options))


def forget(results: Results, *ids: str) -> Results:
    """Remove the measures of these cells."""
    for id in ids:
        (results.folder / "cells" / id / "measures.json").unlink()
    return read(results.folder)


def test_a_numeric_key_is_an_axis_with_each_mean_its_interval_and_its_seeds(tmp_path: Path, drawn: Drawn) -> None:
    picture = figures.leading(made(tmp_path, TWO, ["generator.scale"]))
    axes = drawn["leading"]
    first, second = marks(axes)
    assert first.look == look(0)
    assert second.look == look(1)
    assert first.mean == pytest.approx((0.25, 0.6))
    assert second.mean == pytest.approx((0.5, 0.8))
    assert first.bar == (pytest.approx((0.25, 0.6 - HALF)), pytest.approx((0.25, 0.6 + HALF)))
    assert second.bar == (pytest.approx((0.5, 0.8 - HALF)), pytest.approx((0.5, 0.8 + HALF)))
    assert first.seeds == [(0.25, 0.5), (0.25, 0.6), (0.25, 0.7)]
    assert second.seeds == [(0.5, 0.7), (0.5, 0.9), (0.5, 0.8)]
    assert ticks(axes, "x") == {0.25: "0.25", 0.5: "0.5"}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("generator.scale", "reference_auc")
    assert axes.get_xlim()[0] < 0.25 < 0.5 < axes.get_xlim()[1]
    assert lines(axes)[0] == (
        {"color": SOFT, "marker": "None"}, [(0.25, pytest.approx(0.6)), (0.5, pytest.approx(0.8))]
    )  # fmt: skip
    assert picture is not None
    assert picture.caption == "reference_auc of each variant (higher is better)"
    assert "95% interval" in picture.note


def test_the_line_follows_the_numbers_and_the_colours_the_file(tmp_path: Path, drawn: Drawn) -> None:
    changes = {f"x={x}": {"x": x} for x in (2.0, 0.5, 1.0)}
    figures.leading(made(tmp_path, changes, ["x"]))
    joined, *_ = lines(drawn["leading"])
    assert joined[1] == [(0.5, pytest.approx(0.8)), (1.0, pytest.approx(0.45)), (2.0, pytest.approx(0.6))]
    assert {mark.mean[0]: number_of(mark.look) for mark in marks(drawn["leading"])} == {2.0: 0, 0.5: 1, 1.0: 2}


@pytest.mark.parametrize(("xs", "scale"), [((1.0, 20.0), "log"), ((1.0, 19.0), "linear"), ((-1.0, 100.0), "linear")])
def test_an_axis_is_logarithmic_if_its_numbers_are_far_apart(
    tmp_path: Path, drawn: Drawn, xs: tuple[float, float], scale: str
) -> None:
    figures.leading(made(tmp_path, {f"x={x}": {"x": x} for x in xs}, ["x"]))
    axes = drawn["leading"]
    assert axes.get_xscale() == scale
    assert [mark.mean[0] for mark in marks(axes)] == list(xs)
    assert ticks(axes, "x") == {x: f"{x:g}" for x in xs}
    low, high = axes.get_xlim()
    assert low < xs[0]
    assert xs[1] < high


def test_named_variants_are_rows_from_the_top(tmp_path: Path, drawn: Drawn) -> None:
    figures.leading(made(tmp_path, {"as it is": {}, "a longer name, which needs more than one line": {"x": 1}}))
    axes = drawn["leading"]
    first, second = marks(axes)
    assert first.mean == pytest.approx((0.6, 0.0))
    assert second.mean == pytest.approx((0.8, -1.0))
    assert first.bar == (pytest.approx((0.6 - HALF, 0.0)), pytest.approx((0.6 + HALF, 0.0)))
    assert second.bar == (pytest.approx((0.8 - HALF, -1.0)), pytest.approx((0.8 + HALF, -1.0)))
    assert second.seeds == [(0.7, -1.0), (0.9, -1.0), (0.8, -1.0)]
    assert [number_of(mark.look) for mark in (first, second)] == [0, 1]
    assert ticks(axes, "y") == {0.0: "as it is", -1.0: "a longer name, which\nneeds more than one\nline"}
    assert axes.get_ylim()[0] < -1 < 0 < axes.get_ylim()[1]
    assert axes.get_xlabel() == "reference_auc"
    assert not axes.lines or all(line.get_xdata()[0] != 0 for line in axes.lines)  # zero means nothing here


def test_words_of_one_key_are_rows_without_the_key(tmp_path: Path, drawn: Drawn) -> None:
    changes = {f"sampler.type={name}": {"sampler.type": name} for name in ("gumbel", "argmax")}
    figures.leading(made(tmp_path, changes, ["sampler.type"]))
    assert ticks(drawn["leading"], "y") == {0.0: "gumbel", -1.0: "argmax"}
    assert drawn["leading"].get_ylabel() == "sampler.type"


def test_a_grid_has_a_line_for_each_value_of_the_second_key(tmp_path: Path, drawn: Drawn) -> None:
    results = made(
        tmp_path, GRID, ["generator.scale", "masking.mask_prob"], scores=lambda v, s: 0.5 + 0.1 * v + 0.01 * s
    )
    picture = figures.leading(results)
    axes = drawn["leading"]
    found = {number_of(line): points for line, points in zip((m.look for m in marks(axes)), marks(axes), strict=True)}
    assert found.keys() == {0, 1}  # of the second key's values, not of the six variants
    by_line: dict[int, list[tuple[float, float]]] = {0: [], 1: []}
    for mark in marks(axes):
        by_line[number_of(mark.look)].append(mark.mean)
    # Variants are scale by scale: 0.15, 0.25 of each. Lines stand side by side by 0.05 of the smallest step, 0.25.
    assert by_line[0] == [pytest.approx((x - 0.00625, y)) for x, y in ((0.25, 0.51), (0.5, 0.71), (1.0, 0.91))]
    assert by_line[1] == [pytest.approx((x + 0.00625, y)) for x, y in ((0.25, 0.61), (0.5, 0.81), (1.0, 1.01))]
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["masking.mask_prob = 0.15", "masking.mask_prob = 0.25"]
    assert [handle.get_color() for handle in legend.legend_handles] == list(SERIES[:2])
    for i, (line, points) in enumerate(each for each in lines(axes) if each[1] and len(each[1]) == 3):
        assert line["color"] == SERIES[i]
        assert points == [pytest.approx(each) for each in by_line[i]]
    assert ticks(axes, "x") == {0.25: "0.25", 0.5: "0.5", 1.0: "1"}
    assert picture is not None
    assert picture.note.endswith("One line for each value of masking.mask_prob.")


def test_a_grid_of_words_has_a_column_for_each_value_of_the_first_key(tmp_path: Path, drawn: Drawn) -> None:
    changes = {f"a={a},b={b}": {"a": a, "b": b} for a in ("red", "blue") for b in (1, 2)}
    figures.leading(made(tmp_path, changes, ["a", "b"], scores=lambda v, s: v + 0.1 * s))
    axes = drawn["leading"]
    assert ticks(axes, "x") == {0.0: "red", 1.0: "blue"}
    at = {(number_of(m.look), round(m.mean[0])): m.mean[1] for m in marks(axes)}
    assert at == pytest.approx({(0, 0): 0.1, (1, 0): 1.1, (0, 1): 2.1, (1, 1): 3.1})


def test_a_variant_without_numbers_keeps_its_place_empty_and_others_their_colours(tmp_path: Path, drawn: Drawn) -> None:
    ids = ("v0-s0", "v0-s1", "v0-s2")
    figures.leading(forget(made(tmp_path / "a", TWO, ["generator.scale"]), *ids))
    figures.compute(forget(made(tmp_path / "c", TWO, flops=[1e12, 2e13]), "v1-s1", "v0-s0", "v0-s1"))
    assert lines(drawn["compute"]) == [(look(0), [(1e12, 0.7)]), (look(1), [(2e13, 0.7), (2e13, 0.8)])]
    assert drawn["compute"].get_xscale() == "log"
    [mark] = marks(drawn["leading"])
    assert (number_of(mark.look), mark.mean) == (1, pytest.approx((0.5, 0.8)))
    assert ticks(drawn["leading"], "x") == {0.25: "0.25", 0.5: "0.5"}
    figures.leading(forget(made(tmp_path / "b", {"a": {}, "b": {"x": 1}}), *ids))
    [mark] = marks(drawn["leading"])
    assert (number_of(mark.look), mark.mean) == (1, pytest.approx((0.8, -1.0)))
    assert ticks(drawn["leading"], "y") == {0.0: "a", -1.0: "b"}


def test_a_mean_without_an_interval_has_no_bar(tmp_path: Path, drawn: Drawn) -> None:
    figures.leading(made(tmp_path, TWO, ["generator.scale"], scores=lambda v, s: 0.5))
    assert [(mark.bar, len(mark.seeds)) for mark in marks(drawn["leading"])] == [(None, 3)] * 2


def test_no_number_no_picture(tmp_path: Path, drawn: Drawn) -> None:
    ids = [f"v{v}-s{s}" for v in (0, 1) for s in (0, 1, 2)]
    results = made(tmp_path, TWO, ["generator.scale"], state=dict.fromkeys(ids, "missing"))
    assert figures.leading(results) is None
    assert figures.differences(results) is None
    assert figures.compute(results) == (None, "No cell has a reference_auc yet.")
    assert figures.curves(results) == []
    assert drawn == {}


def test_labels_that_would_run_into_each_other_are_left_out(tmp_path: Path, drawn: Drawn) -> None:
    xs = (1.0, 1.01, 1.02, 1.5, 2.0)
    figures.leading(made(tmp_path, {f"x={x}": {"x": x} for x in xs}, ["x"], scores=lambda v, s: v + s))
    assert ticks(drawn["leading"], "x") == {1.0: "1", 1.5: "1.5", 2.0: "2"}
    assert [mark.mean[0] for mark in marks(drawn["leading"])] == list(xs)


def test_numbers_at_the_ends_of_what_there_is_can_be_drawn(tmp_path: Path) -> None:
    changes = {f"x={x}": {"x": x} for x in (1e-300, 1.0, 1e300)}
    picture = figures.leading(made(tmp_path, changes, ["x"], seeds=(0, 1)))
    assert picture is not None
    assert picture.svg.startswith("<svg")


LONG = {
    "a name that goes on and on, as names do, until nobody reads it any more": {},
    "generator.scale=0.25,masking.mask_prob=0.15,objective.discriminator_weight=50": {"x": 1},
    "adversarial": {"x": 2},
    **{f"another name that needs more than three lines of its own, number {n}": {"x": n} for n in range(3, 9)},
}
EVERY: dict[str, dict[str, Any]] = {
    "a numeric key": {"changes": SCALES, "keys": ["generator.scale"]},
    "close numbers": {"changes": {f"x={x}": {"x": x} for x in (1, 1.01, 1.02, 1.5, 2, 2.0001)}, "keys": ["x"]},
    "far numbers": {"changes": {f"x={x}": {"x": x} for x in (1e-5, 1e-4, 1e-3, 1.1e-3, 1e-2)}, "keys": ["x"]},
    "long names": {"changes": LONG},
    "a grid": {"changes": GRID, "keys": ["generator.scale", "masking.mask_prob"], "flops": [1e12, 3e12] * 3},
    "words on a grid": {"changes": {f"a={a},b={b}": {"a": f"{a} and so on", "b": b} for a in ("red", "blue", "green")
                                    for b in range(5)}, "keys": ["a", "b"]},
}  # fmt: skip


@pytest.mark.parametrize("case", EVERY)
def test_no_text_of_a_picture_covers_another(tmp_path: Path, drawn: Drawn, case: str) -> None:
    results = made(tmp_path, seeds=(0, 1), scores=lambda v, s: 0.7 + v / 100 + s / 1000, **EVERY[case])
    figures.leading(results)
    figures.differences(results)
    figures.compute(results)
    figures.curves(results)
    assert drawn.keys() >= {"leading", "differences", "compute", "curve-0"}
    assert {name: found for name, axes in drawn.items() if (found := overlaps(axes))} == {}


def test_a_comma_alone_is_not_a_line() -> None:
    label = "generator.scale=0.25,masking.mask_prob=0.15,objective.type=mlm"
    assert figures._wrapped(label) == "generator.scale=0.25,\nmasking.mask_prob=0.15,\nobjective.type=mlm"
    assert figures._wrapped("one two three four five six seven eight nine ten eleven twelve thirteen") == (
        "one two three four\nfive six seven eight\nnine ten eleven twelve..."
    )


@pytest.mark.parametrize(
    ("label", "lines"),
    [
        ("detection_with_teams(x)", ["detection_with_teams", "(x)"]),
        ("encoder={type: reformer, hashes: 4}", ["encoder=", "{type: reformer,", "hashes: 4}"]),
        ("local attention, 128 (ModernBERT)", ["local attention, 128", "(ModernBERT)"]),
        ("discriminator.width=0.125", ["discriminator.width=", "0.125"]),
        ("objective.discriminator_weight=50", ["objective.", "discriminator_weight=", "50"]),
        ("f(a,b)", ["f(a,b)"]),
        ("x" * 30, ["x" * 22, "x" * 8]),
    ],
)
def test_a_label_is_broken_between_words_and_before_brackets(label: str, lines: list[str]) -> None:
    assert figures._wrapped(label).splitlines() == lines


def test_a_difference_is_the_variant_minus_the_baseline_seed_by_seed(tmp_path: Path, drawn: Drawn) -> None:
    """0.2, 0.3 and 0.1: on average 0.2, with a standard deviation of 0.1; the other is as far below."""
    changes = {"base": {}, "better": {"x": 1}, "worse": {"x": 2}}
    picture = figures.differences(made(tmp_path, changes))
    axes = drawn["differences"]
    better, worse = marks(axes)
    assert better.mean == pytest.approx((0.2, 0.0))
    assert better.bar == (pytest.approx((0.2 - HALF, 0.0)), pytest.approx((0.2 + HALF, 0.0)))
    assert better.seeds == [pytest.approx((x, 0.0)) for x in (0.2, 0.3, 0.1)]
    assert worse.mean == pytest.approx((-0.15, -1.0))
    assert worse.seeds == [pytest.approx((x, -1.0)) for x in (-0.1, -0.1, -0.25)]
    assert [number_of(mark.look) for mark in (better, worse)] == [1, 2]  # the baseline's is 0
    assert ticks(axes, "y") == {0.0: "better", -1.0: "worse"}
    assert axes.get_xlabel() == "difference in reference_auc"
    zero = axes.lines[0]
    assert (list(zero.get_xdata()), zero.get_linestyle(), zero.get_color()) == ([0, 0], "--", SOFT)
    assert picture is not None
    assert picture.caption == "reference_auc: difference to base"


def test_a_difference_has_the_interval_of_the_table(tmp_path: Path, drawn: Drawn) -> None:
    numbers = np.random.default_rng(0).normal(0.7, 0.05, (3, 2, 1)) + np.zeros(5) + 0.001 * np.arange(5) ** 2
    folder = write_folder(tmp_path, {"base": {}, "other": {"x": 1}}, range(5))
    results = read(add_references(folder, lambda r, v, seed: float(numbers[r, v, seed] + 0.001 * v * (seed % 2))))
    figures.differences(results)
    [only] = marks(drawn["differences"])
    found = results.comparisons.against("auc")["other"]
    assert only.bar == (pytest.approx((found.low, 0.0)), pytest.approx((found.high, 0.0)))
    assert found.half is not None
    assert found.half > 3 * (difference(*(results.values("auc")[label] for label in ("other", "base"))).half or 0)


def test_a_seed_that_only_one_of_two_has_makes_no_difference(tmp_path: Path, drawn: Drawn) -> None:
    results = forget(made(tmp_path, {"base": {}, "a": {"x": 1}, "b": {"x": 2}}), "v0-s0", "v1-s1", "v2-s1", "v2-s2")
    figures.differences(results)
    [only] = marks(drawn["differences"])
    assert only.mean == pytest.approx((0.1, 0.0))  # of seed 2 alone
    assert only.bar is None
    assert ticks(drawn["differences"], "y") == {0.0: "a", -1.0: "b"}  # b shares no seed with the baseline
    assert figures.differences(forget(results, "v1-s2")) is None


def test_a_metric_is_drawn_over_the_flops_of_its_own_cell(tmp_path: Path, drawn: Drawn) -> None:
    picture, said = figures.compute(made(tmp_path, TWO, ["generator.scale"], flops=[1e12, 1.5e12]))
    assert lines(drawn["compute"]) == [
        (look(0), [(1e12, 0.5), (1e12, 0.6), (1e12, 0.7)]),
        (look(1), [(1.5e12, 0.7), (1.5e12, 0.9), (1.5e12, 0.8)]),
    ]
    axes = drawn["compute"]
    assert all(line.get_linestyle() == "None" for line in axes.lines)
    assert (axes.get_xscale(), axes.get_xlabel()) == ("linear", "training FLOPs of the cell")
    assert axes.get_ylabel() == "reference_auc"
    assert axes.xaxis.get_major_formatter()(1.25e12, 0) == "1.25T"
    assert picture is not None
    assert picture.caption == "reference_auc against training FLOPs of the cell"
    assert said == "The measured cells used between 1.00e+12 and 1.50e+12 FLOPs each."


def test_at_equal_flops_the_parameters_take_their_place(tmp_path: Path, drawn: Drawn) -> None:
    picture, said = figures.compute(made(tmp_path, TWO, flops=[1e12, 1.02e12]))
    assert [points[0][0] for _, points in lines(drawn["compute"])] == [4_200_000, 4_700_000]
    assert drawn["compute"].get_xlabel() == "parameters, both networks"
    assert picture is not None
    assert said == (
        "All measured cells used the same compute, 1.00e+12 to 1.02e+12 FLOPs each, so the chart shows the parameters "
        "of both networks instead."
    )


def test_where_neither_differs_there_is_no_chart(tmp_path: Path, drawn: Drawn) -> None:
    results = made(tmp_path, TWO, flops=[1e12, 1e12])
    for file in results.folder.glob("cells/*/provenance.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"parameters": {"total": 5}}))
    picture, said = figures.compute(read(results.folder))
    assert picture is None
    assert said == (
        "All measured cells used the same compute, 1.00e+12 FLOPs each, and their networks have the same number of "
        "parameters: neither explains a difference here."
    )
    file = next(results.folder.glob("cells/*/provenance.json"))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"parameters": {}}))
    picture, said = figures.compute(read(results.folder))
    assert picture is None
    assert said.endswith("1.00e+12 FLOPs each; the numbers of their parameters are not all known.")
    assert drawn == {}


def test_the_key_of_a_variant_has_its_colour_and_marker(drawn: Drawn) -> None:
    assert list(figures.keys(SCALES)) == list(SCALES)
    assert [number_of(lines(drawn[f"key{i}"])[0][0]) for i in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("number", "text"),
    [(1.2e12, "1.2T"), (1e15, "1P"), (999.0, "999"), (1000, "1k"), (2.5e6, "2.5M"), (3.14159e9, "3.142G"), (0.0, "0")],
)
def test_a_large_number_is_short(number: float, text: str) -> None:
    assert short(number) == text
