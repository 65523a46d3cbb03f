"""The charts of an ablation plot the cells' numbers in the colour and marker of their variant."""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from electra_lab.analysis.intervals import difference
from electra_lab.analysis.records import POINTS
from electra_lab.analysis.results import Results, read
from electra_lab.presentation import sweep_figures as figures
from electra_lab.presentation.figures import wrapped
from electra_lab.presentation.pages import SOFT, look
from electra_lab.presentation.text import short
from tests.electra_lab.presentation.axes import Drawn, lines, marks, number_of, overlaps, ticks
from tests.electra_lab.presentation.synthetic import GRID, SCALES, add_references, write_folder

# Two variants over three seeds: each has a standard deviation of 0.1, and so have their differences.
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


def near(points: Any) -> Any:
    return pytest.approx(np.array(points))


def test_a_numeric_key_is_an_axis_with_each_mean_its_interval_and_its_seeds(tmp_path: Path, drawn: Drawn) -> None:
    picture = figures.leading(made(tmp_path, TWO, ["generator.scale"]))
    axes = drawn["leading"]
    first, second = marks(axes)
    assert (first.look, second.look) == (look(0), look(1))
    assert np.array([first.mean, *first.bar]) == near([(0.25, 0.6), (0.25, 0.6 - HALF), (0.25, 0.6 + HALF)])
    assert np.array([second.mean, *second.bar]) == near([(0.5, 0.8), (0.5, 0.8 - HALF), (0.5, 0.8 + HALF)])
    assert first.seeds == [(0.25, value) for value in BY_HAND[0]]
    assert second.seeds == [(0.5, value) for value in BY_HAND[1]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("generator.scale", "reference_auc")
    assert axes.get_xlim()[0] < 0.25 < 0.5 < axes.get_xlim()[1]
    (style, joined), *_ = lines(axes)
    assert style == {"color": SOFT, "marker": "None"}
    assert np.array(joined) == near([(0.25, 0.6), (0.5, 0.8)])
    assert picture is not None
    assert picture.caption == "reference_auc of each variant (higher is better)"
    assert "95% interval" in picture.note


def test_the_line_follows_the_numbers_and_the_colours_the_file(tmp_path: Path, drawn: Drawn) -> None:
    figures.leading(made(tmp_path, {f"x={x}": {"x": x} for x in (2.0, 0.5, 1.0)}, ["x"]))
    (_, joined), *_ = lines(drawn["leading"])
    assert np.array(joined) == near([(0.5, 0.8), (1.0, 0.45), (2.0, 0.6)])
    assert {mark.mean[0]: number_of(mark.look) for mark in marks(drawn["leading"])} == {2.0: 0, 0.5: 1, 1.0: 2}


@pytest.mark.parametrize(("xs", "scale"), [((1.0, 20.0), "log"), ((1.0, 19.0), "linear"), ((-1.0, 100.0), "linear")])
def test_an_axis_is_logarithmic_if_its_numbers_are_far_apart(tmp_path: Path, drawn: Drawn, xs, scale: str) -> None:
    figures.leading(made(tmp_path, {f"x={x}": {"x": x} for x in xs}, ["x"]))
    axes = drawn["leading"]
    assert (axes.get_xscale(), [mark.mean[0] for mark in marks(axes)]) == (scale, list(xs))
    assert axes.get_xlim()[0] < xs[0] < xs[1] < axes.get_xlim()[1]


def test_named_variants_are_rows_from_the_top(tmp_path: Path, drawn: Drawn) -> None:
    figures.leading(made(tmp_path, {"as it is": {}, "a longer name, which needs more than one line": {"x": 1}}))
    axes = drawn["leading"]
    first, second = marks(axes)
    assert np.array([first.mean, *first.bar]) == near([(0.6, 0), (0.6 - HALF, 0), (0.6 + HALF, 0)])
    assert np.array([second.mean, *second.bar]) == near([(0.8, -1), (0.8 - HALF, -1), (0.8 + HALF, -1)])
    assert second.seeds == [(value, -1.0) for value in BY_HAND[1]]
    assert [number_of(mark.look) for mark in (first, second)] == [0, 1]
    assert ticks(axes, "y") == {0.0: "as it is", -1.0: "a longer name, which\nneeds more than one\nline"}
    assert axes.get_ylim()[0] < -1 < 0 < axes.get_ylim()[1]
    assert axes.get_xlabel() == "reference_auc"
    assert all(line.get_xdata()[0] != 0 for line in axes.lines)  # zero has no meaning here


def test_words_of_one_key_are_rows_without_the_key(tmp_path: Path, drawn: Drawn) -> None:
    changes = {f"sampler.type={name}": {"sampler.type": name} for name in ("gumbel", "argmax")}
    figures.leading(made(tmp_path, changes, ["sampler.type"]))
    assert ticks(drawn["leading"], "y") == {0.0: "gumbel", -1.0: "argmax"}
    assert drawn["leading"].get_ylabel() == "sampler.type"


def test_two_keys_are_rows(tmp_path: Path, drawn: Drawn) -> None:
    figures.leading(made(tmp_path, GRID, ["generator.scale", "masking.mask_prob"], scores=lambda v, s: v + 0.1 * s))
    assert [mark.mean for mark in marks(drawn["leading"])] == near([(v + 0.1, -v) for v in range(len(GRID))])
    assert len(ticks(drawn["leading"], "y")) == len(GRID)


def test_a_variant_without_numbers_keeps_its_place_empty_and_others_their_colours(tmp_path: Path, drawn: Drawn) -> None:
    ids = ("v0-s0", "v0-s1", "v0-s2")
    for name, changes, keys, mean in (
        ("a", TWO, ["generator.scale"], (0.5, 0.8)), ("b", {"a": {}, "b": {"x": 1}}, [], (0.8, -1.0)),
    ):  # fmt: skip
        figures.leading(forget(made(tmp_path / name, changes, keys), *ids))
        [mark] = marks(drawn["leading"])
        assert (number_of(mark.look), mark.mean) == (1, pytest.approx(mean))
        assert keys or ticks(drawn["leading"], "y") == {0.0: "a", -1.0: "b"}
    figures.compute(forget(made(tmp_path / "c", TWO, flops=[1e12, 2e13]), "v1-s1", "v0-s0", "v0-s1"))
    assert lines(drawn["compute"]) == [(look(0), [(1e12, 0.7)]), (look(1), [(2e13, 0.7), (2e13, 0.8)])]
    assert drawn["compute"].get_xscale() == "log"


def test_a_mean_without_an_interval_has_no_bar(tmp_path: Path, drawn: Drawn) -> None:
    figures.leading(made(tmp_path, TWO, ["generator.scale"], scores=lambda v, s: 0.5))
    assert [(mark.bar, len(mark.seeds)) for mark in marks(drawn["leading"])] == [(None, 3)] * 2


def test_no_number_no_picture(tmp_path: Path, drawn: Drawn) -> None:
    ids = [f"v{v}-s{s}" for v in (0, 1) for s in (0, 1, 2)]
    results = made(tmp_path, TWO, ["generator.scale"], state=dict.fromkeys(ids, "missing"))
    assert figures.leading(results) is None
    assert figures.differences(results) is None
    assert figures.compute(results) == (None, "No cell has a reference_auc yet.")
    assert (figures.curves(results), drawn) == ([], {})


def test_the_smallest_and_largest_numbers_can_be_drawn(tmp_path: Path) -> None:
    picture = figures.leading(made(tmp_path, {f"x={x}": {"x": x} for x in (1e-300, 1.0, 1e300)}, ["x"], seeds=(0, 1)))
    assert picture is not None
    assert picture.svg.startswith("<svg")


LONG = {
    "a name that goes on and on, as names do, until nobody reads it any more": {},
    "generator.scale=0.25,masking.mask_prob=0.15,objective.discriminator_weight=50": {"x": 1},
    "adversarial": {"x": 2},
    **{f"another name that needs more than three lines of its own, number {n}": {"x": n} for n in range(3, 9)},
}
PLACES = product(("red", "blue", "green"), range(5))
WORDS = {f"a={colour},b={number}": {"a": f"{colour} and so on", "b": number} for colour, number in PLACES}
EVERY: dict[str, dict[str, Any]] = {
    "close numbers": {"changes": {f"x={x}": {"x": x} for x in (1, 1.01, 1.02, 1.5, 2, 2.0001)}, "keys": ["x"]},
    "far numbers": {"changes": {f"x={x}": {"x": x} for x in (1e-5, 1e-4, 1e-3, 1.1e-3, 1e-2)}, "keys": ["x"]},
    "long names": {"changes": LONG},
    "a grid": {"changes": GRID, "keys": ["generator.scale", "masking.mask_prob"], "flops": [1e12, 3e12] * 3},
    "words on a grid": {"changes": WORDS, "keys": ["a", "b"]},
}


@pytest.mark.parametrize("case", EVERY)
def test_no_text_of_a_picture_covers_another(tmp_path: Path, drawn: Drawn, case: str) -> None:
    flops = [1e12 * (1 + i) for i in range(len(EVERY[case]["changes"]))]
    every = {"flops": flops, **EVERY[case]}
    results = made(tmp_path, seeds=(0, 1), scores=lambda v, s: 0.7 + v / 100 + s / 1000, **every)
    for draw in (figures.leading, figures.differences, figures.compute, figures.curves):
        draw(results)
    assert drawn.keys() >= {"leading", "differences", "compute", "curve-generator_loss"}
    assert {name: found for name, axes in drawn.items() if (found := overlaps(axes))} == {}


@pytest.mark.parametrize(
    ("label", "lines"),
    [
        ("detection_with_teams(x)", ["detection_with_teams", "(x)"]),
        ("encoder={type: reformer, hashes: 4}", ["encoder={type:", "reformer, hashes: 4}"]),
        ("local attention, 128 (ModernBERT)", ["local attention, 128", "(ModernBERT)"]),
        ("discriminator.width=0.125", ["discriminator.width=", "0.125"]),
        ("objective.discriminator_weight=50", ["objective.", "discriminator_weight=", "50"]),
        ("f(a,b)", ["f(a,b)"]),
        ("x" * 30, ["x" * 22, "x" * 8]),
        ("generator.scale=0.25,masking.mask_prob=0.15", ["generator.scale=0.25,", "masking.mask_prob=0.15"]),
        ("one two three four five six seven eight nine ten eleven twelve thirteen",
         ["one two three four", "five six seven eight", "nine ten eleven..."]),
    ],
)  # fmt: skip
def test_a_label_is_broken_between_words_and_before_brackets(label: str, lines: list[str]) -> None:
    assert wrapped(label).splitlines() == lines


def test_a_difference_is_the_variant_minus_the_baseline_seed_by_seed(tmp_path: Path, drawn: Drawn) -> None:
    """0.2, 0.3 and 0.1: on average 0.2, with a standard deviation of 0.1; the other variant is equally far below."""
    picture = figures.differences(made(tmp_path, {"base": {}, "better": {"x": 1}, "worse": {"x": 2}}))
    axes = drawn["differences"]
    better, worse = marks(axes)
    assert np.array([better.mean, *better.bar]) == near([(0.2, 0), (0.2 - HALF, 0), (0.2 + HALF, 0)])
    assert np.array(better.seeds) == near([(x, 0) for x in (0.2, 0.3, 0.1)])
    assert np.array([worse.mean, *worse.seeds]) == near([(x, -1) for x in (-0.15, -0.1, -0.1, -0.25)])
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
    assert np.array(only.bar) == near([(found.low, 0.0), (found.high, 0.0)])
    alone = difference(*(results.values("auc")[label] for label in ("other", "base")))
    assert (found.half or 0) > 3 * (alone.half or 0) > 0


def test_a_seed_that_only_one_of_two_has_makes_no_difference(tmp_path: Path, drawn: Drawn) -> None:
    results = forget(made(tmp_path, {"base": {}, "a": {"x": 1}, "b": {"x": 2}}), "v0-s0", "v1-s1", "v2-s1", "v2-s2")
    figures.differences(results)
    [only] = marks(drawn["differences"])
    assert (only.mean, only.bar) == (pytest.approx((0.1, 0.0)), None)  # of seed 2 alone
    assert ticks(drawn["differences"], "y") == {0.0: "a", -1.0: "b"}  # b shares no seed with the baseline
    assert figures.differences(forget(results, "v1-s2")) is None


def test_a_metric_is_drawn_over_the_flops_of_its_own_cell(tmp_path: Path, drawn: Drawn) -> None:
    picture, said = figures.compute(made(tmp_path, TWO, ["generator.scale"], flops=[1e12, 1.5e12]))
    axes = drawn["compute"]
    for i, (x, line) in enumerate(zip((1e12, 1.5e12), lines(axes), strict=True)):
        assert line == (look(i), [(x, value) for value in BY_HAND[i]])
    assert all(line.get_linestyle() == "None" for line in axes.lines)
    assert (axes.get_xscale(), axes.get_xlabel()) == ("linear", "training FLOPs of the cell")
    assert axes.get_ylabel() == "reference_auc"
    assert axes.xaxis.get_major_formatter()(1.25e12, 0) == "1.25T"
    assert picture is not None
    assert picture.caption == "reference_auc against training FLOPs of the cell"
    assert said == "The measured cells used between 1.00e+12 and 1.50e+12 FLOPs each."


def test_at_equal_flops_there_is_no_chart(tmp_path: Path, drawn: Drawn) -> None:
    picture, said = figures.compute(made(tmp_path, TWO, flops=[1e12, 1.02e12]))
    assert (picture, drawn) == (None, {})
    assert "1.00e+12 to 1.02e+12 FLOPs each." in said


def test_the_key_of_a_variant_has_its_colour_and_marker(drawn: Drawn) -> None:
    assert list(figures.keys(SCALES)) == list(SCALES)
    assert [number_of(lines(drawn[f"key{i}"])[0][0]) for i in range(4)] == [0, 1, 2, 3]


def test_a_large_number_is_short() -> None:
    found = [short(number) for number in (1.2e12, 1e15, 999.0, 1000, 2.5e6, 3.14159e9, 0.0)]
    assert found == ["1.2T", "1P", "999", "1k", "2.5M", "3.142G", "0"]


LOSS = "Generator loss, nats (validation text)"


def rewrite(results: Results, *records: dict[str, Any], only: str = "*") -> None:
    """Replace the records of cells."""
    for folder in results.folder.glob(f"cells/{only}"):
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def train(step: int, flops: float, **values: float) -> dict[str, Any]:
    return {"step": step, "split": "train", "flops": flops, **values}


def validation(step: int, **values: float | None) -> dict[str, Any]:
    return {"step": step, "split": "validation", **values}


def test_a_curve_is_drawn_over_the_flops_of_its_steps(tmp_path: Path, drawn: Drawn) -> None:
    """Steps 10 and 20 cost 100 and 300 in one cell; step 15 lies half way between them. The test is in no curve."""
    results = made(tmp_path, TWO, seeds=(0,))
    rewrite(
        results, train(10, 100.0, generator_loss=9.0), validation(10, discriminator_auc=0.5, generator_loss=4.0),
        validation(15, discriminator_auc=0.6, generator_loss=3.0), train(20, 300.0, generator_loss=8.0),
        validation(20, discriminator_auc=None, generator_loss=2.0),
        {"step": 20, "split": "test", "tokens": 64, "discriminator_auc": 0.9, "generator_loss": 0.5}, only="v0-s0",
    )  # fmt: skip
    rewrite(
        results, train(10, 1000.0, generator_loss=7.0), validation(5, discriminator_auc=0.7),
        validation(10, discriminator_auc=0.8), only="v1-s0",
    )  # fmt: skip
    assert [figure.caption for figure in figures.curves(results)] == [LOSS, "Discriminator AUC (validation text)"]
    assert lines(drawn["curve-generator_loss"]) == [
        (look(0), [(100.0, 4.0), (200.0, 3.0), (300.0, 2.0)]),
        (look(1), []),
    ]
    auc = drawn["curve-discriminator_auc"]
    assert lines(auc) == [(look(0), [(100.0, 0.5), (200.0, 0.6)]), (look(1), [(500.0, 0.7), (1000.0, 0.8)])]
    assert (auc.get_xlabel(), auc.xaxis.get_major_formatter()(2.5e15, 0)) == ("training FLOPs", "2.5P")


def test_a_metric_that_was_evaluated_once_is_drawn_on_training_text(tmp_path: Path, drawn: Drawn) -> None:
    results = made(tmp_path, TWO, seeds=(0,))
    both = validation(20, discriminator_auc=0.5, generator_loss=4.0)
    rewrite(results, train(10, 100.0, generator_loss=9.0), train(20, 200.0, generator_loss=8.0), both)
    assert [figure.caption for figure in figures.curves(results)] == ["Generator loss, nats (training text)"]
    assert lines(drawn["curve-generator_loss"])[1] == (look(1), [(100.0, 9.0), (200.0, 8.0)])


def test_a_model_that_predicts_tokens_is_not_in_the_picture_of_detection(tmp_path: Path, drawn: Drawn) -> None:
    results = made(tmp_path, {"electra": {}, "mlm": {}}, seeds=(0,))
    rows = [train(10, 100.0, discriminator_loss=0.5), train(20, 200.0, discriminator_loss=0.4)]
    tokens = {"discriminator_token_loss": 5.0, "discriminator_loss": 5.0}
    rewrite(results, *rows, only="v0-s0")
    rewrite(results, *(row | tokens for row in rows), only="v1-s0")
    captions = [f"Discriminator {loss}, nats (training text)" for loss in ("token loss", "loss")]
    assert [figure.caption for figure in figures.curves(results)] == captions
    assert lines(drawn["curve-discriminator_loss"]) == [(look(0), [(100.0, 0.5), (200.0, 0.4)]), (look(1), [])]
    assert lines(drawn["curve-discriminator_token_loss"]) == [(look(0), []), (look(1), [(100.0, 5.0), (200.0, 5.0)])]


def test_a_long_curve_keeps_its_ends(tmp_path: Path, drawn: Drawn) -> None:
    results = made(tmp_path, TWO, seeds=(0,))
    rewrite(results, *(train(n, 10.0 * n, generator_loss=float(n)) for n in range(1, 1000)))
    figures.curves(results)
    _, points = lines(drawn["curve-generator_loss"])[0]
    assert 100 < len(points) <= POINTS + 1
    assert (points[0], points[-1]) == ((10.0, 1.0), (9990.0, 999.0))
    assert all(x == 10 * y for x, y in points)


def test_the_leading_metric_comes_first_and_a_run_may_declare_its_own(tmp_path: Path, drawn: Drawn) -> None:
    results = made(tmp_path, TWO, seeds=(0,))
    metrics = {"word_loss": {"title": "word loss", "unit": "bits", "chart": True}, "plain": {"title": "plain"}}
    for file in results.folder.glob("cells/*/provenance.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"metrics": metrics}))
    others = {"plain": 1.0, "reference_auc": 0.5, "generator_loss": 1.0}
    rewrite(results, *(validation(n, word_loss=n / 8, **others) for n in (1, 2)), train(2, 20.0))
    captions = [picture.caption for picture in figures.curves(read(results.folder))]
    assert captions == ["reference_auc (validation text)", "Word loss, bits (validation text)"]
    assert lines(drawn["curve-word_loss"])[0] == (look(0), [(10.0, 0.125), (20.0, 0.25)])
