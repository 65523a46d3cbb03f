"""Baselines that need no training: an ablation of models that learned nothing has no best variant."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from electra_lab.analysis.results import read
from electra_lab.presentation import sweep_figures as figures
from electra_lab.presentation.sweep_page import cells_csv, tables, variants_markdown, write_report
from electra_lab.presentation.verdict import judge
from tests.electra_lab.presentation import synthetic
from tests.electra_lab.presentation.axes import Drawn
from tests.electra_lab.presentation.synthetic import SCALES, Score, add_baselines, write_folder
from tests.pages import Page

FIVE = range(5)
APART = (0.50, 0.60, 0.55, 0.52)
NONE = "No variant is distinguishably better"


def noise(variant: int, seed: int) -> float:
    """Seeds differ by a hundredth, and variants from seed to seed by a thousandth."""
    return 0.01 * seed + 0.001 * ((seed * 7 + variant * 3) % 5)


def scored(*means: float) -> Score:
    return lambda variant, seed: means[variant] + noise(variant, seed)


def always(value: float) -> Score:
    return lambda variant, seed: value


def made(folder: Path, score: Score, seeds: Sequence[int] = FIVE) -> Path:
    return write_folder(folder, SCALES, seeds, scores=score)


def said(folder: Path) -> list[str]:
    results = read(folder)
    plan = results.plan
    higher = plan.metrics[plan.metric].higher_is_better
    values = results.values(plan.metric)
    return judge(plan.metric, values, plan.baseline, higher, compared=results.comparisons).sentences


def test_no_variant_is_the_best_if_none_beats_the_baselines(tmp_path: Path) -> None:
    """However clearly they differ from each other: 0.60 and 0.50, where suspecting rare words gives 0.65."""
    folder = made(tmp_path / "a", scored(*APART))
    before = said(folder)
    assert "has the best (the highest)" in before[1]
    first, *rest = said(add_baselines(folder, rare=scored(0.65, 0.65, 0.65, 0.65), chance=always(0.5)))
    assert first.startswith(f"{NONE} than the baselines that need no training (the rare and the chance)")
    assert rest[0] == before[0]
    assert rest[1].startswith("generator.scale=0.5 has the highest mean reference_auc")
    assert "the best" not in " ".join(rest)
    # Not even one that is alone, or that no test finds to be better.
    alone = write_folder(tmp_path / "b", dict([*SCALES.items()][:1]), FIVE, scores=scored(0.5))
    assert said(add_baselines(alone, rare=always(0.6)))[0].startswith("No variant is")
    near = made(tmp_path / "c", lambda variant, seed: 0.51 + 0.04 * (-1) ** (seed + variant))
    assert said(add_baselines(near, chance=always(0.5)))[0].startswith(NONE)


def test_none_is_the_best_by_any_reference_either(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, SCALES, FIVE)
    add = synthetic.add_references
    add(folder, lambda reference, variant, seed: 0.5 + 0.02 * variant + noise(variant + reference, seed))
    assert "best mean by every reference" in variants_markdown(read(folder))
    add_baselines(folder, "auc", rare=always(0.7))
    assert "best" not in variants_markdown(read(folder))


@pytest.mark.parametrize(("own", "found"), [(0.71, False), (0.50, True)])
def test_some_variants_may_beat_them(tmp_path: Path, own: float, found: bool) -> None:
    folder, floors = made(tmp_path, scored(0.50, 0.70, 0.55, 0.52)), [0.60, own, 0.60, 0.60]
    first, second, third, *_ = said(add_baselines(folder, rare=lambda variant, seed: floors[variant]))
    assert first.startswith(NONE) == (not found)
    if found:
        assert first == "Every variant has 5 seeds or more."
        assert "generator.scale=0.5 has the best (the highest) mean" in second
        worse = "generator.scale=0.25, generator.scale=0.75 and generator.scale=1.0 are not distinguishably better"
        assert third.startswith(worse)


@pytest.mark.parametrize(("floor", "first"), [(0.65, "No variant is better than"), (0.45, "With 2 seeds this is")])
def test_with_few_seeds_the_sentence_only_describes(tmp_path: Path, floor: float, first: str) -> None:
    text = said(add_baselines(made(tmp_path, scored(*APART), range(2)), rare=always(floor)))
    assert (text[0].startswith(first), "distinguish" in text[0]) == (True, False)


def test_other_documents_count(tmp_path: Path) -> None:
    folder = made(tmp_path, scored(0.55, 0.56, 0.57, 0.58))
    add_baselines(folder, rare=always(0.5))
    assert not said(folder)[0].startswith("No variant")
    for cell in folder.glob("cells/*"):
        own = [0.2, 0.9, 0.3, 0.85 + 0.001 * int(cell.name[-1])]
        units = {"reference_auc": own, "rare": [0.5, 0.5, 0.5, 0.5]}
        (cell / "documents.json").write_text(json.dumps({synthetic.CORRUPTION: units}))
    assert said(folder)[0].startswith(NONE)


def test_lower_can_be_better(tmp_path: Path) -> None:
    folder = made(tmp_path, scored(6.6, 6.5, 6.7, 6.8))
    plan = json.loads((folder / "plan.json").read_text())
    plan["measures"][0]["metrics"]["reference_auc"]["higher_is_better"] = False
    (folder / "plan.json").write_text(json.dumps(plan))
    assert said(add_baselines(folder, frequencies=always(6.4)))[0].startswith(NONE)
    second = said(add_baselines(folder, frequencies=always(7.0)))[1]
    assert "generator.scale=0.5 has the best (the lowest) mean" in second


@pytest.mark.usefixtures("plain")
def test_a_baseline_is_a_row_of_its_metric_and_no_metric_of_its_own(tmp_path: Path) -> None:
    folder = made(tmp_path, scored(*APART))
    without = read(folder).comparisons
    add_baselines(folder, rare=lambda variant, seed: 0.6 + 0.01 * variant)
    results = read(folder)
    assert [name for name, *_ in tables(results)] == ["reference_auc", "reference_accuracy", "own_loss"]
    assert results.comparisons.against("rare") == {} != without.against("reference_auc")
    page = Page(write_report(folder))
    [row] = [row for row in page.table("All metrics") if row[0] == "the rare"]
    assert (row[2], row[5]) == ("0.6150", "needs no training")
    assert "| the rare " in variants_markdown(results)
    assert ",rare," in cells_csv(results).splitlines()[0]
    [first, *_] = [each.text for each in page.all("p") if "main" in each["class"]]
    assert first.startswith("No variant")


@pytest.mark.parametrize("keys", [[], ["generator.scale"]])
def test_charts_have_a_line_for_each_baseline(tmp_path: Path, drawn: Drawn, keys: list[str]) -> None:
    folder = write_folder(tmp_path, SCALES, FIVE, keys, scores=scored(*APART))
    picture = figures.leading(read(add_baselines(folder, rare=always(0.65), chance=always(0.5))))
    assert picture is not None
    assert "the rare and the chance" in picture.note
    dashed = [line for line in drawn["leading"].lines if line.get_linestyle() == "--"]
    assert [(line.get_ydata() if keys else line.get_xdata())[0] for line in dashed] == pytest.approx([0.65, 0.5])
