"""The limits of a verdict on an ablation's page, among them baselines that need no training."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from electra_lab.analysis.intervals import MANY_DOCUMENTS
from electra_lab.analysis.power import detectable
from electra_lab.analysis.results import cell_result, read
from electra_lab.presentation import sweep_figures as figures
from electra_lab.presentation.sweep_page import cells_csv, variants_markdown, write_report
from electra_lab.presentation.sweep_summary import differences
from electra_lab.presentation.text import number
from electra_lab.presentation.verdict import SENTENCES, comparison, tables
from electra_lab.presentation.verdict import verdict as sentences
from electra_lab.storage.ablation_folder import AblationFolder
from tests.electra_lab.presentation import synthetic
from tests.electra_lab.presentation.axes import Drawn
from tests.electra_lab.presentation.synthetic import (
    CORRUPTION,
    SCALES,
    STEPS,
    Score,
    add_baselines,
    add_documents,
    write_folder,
)
from tests.electra_lab.presentation.test_ablation_tables import change_plan
from tests.pages import Page

METRIC = "reference_auc"


def compared(folder: Path) -> dict[str, Any]:
    """Return the rows of each metric."""
    results = read(folder)
    return {name: comparison(results, name, metric) for name, metric in results.plan.metrics.items()}


def verdict(folder: Path) -> str:
    with pytest.MonkeyPatch.context() as patch:
        synthetic.leave_out_pictures(patch)
        text = Page(write_report(folder)).text
    markdown = (folder / "table.md").read_text().replace("\\", "").split("## ")[0]
    for sentence in said(folder):
        assert sentence in text
        assert sentence in markdown.replace("**", "")
    return text


def test_the_smallest_difference_that_can_be_found_stands_beside_the_verdict(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, SCALES, range(5), ["generator.scale"], sd=0.01)
    size = detectable(5, len(SCALES) - 1)
    assert size is not None
    text = verdict(folder)
    assert f"find a difference of {number(0.01 * size)} in reference_auc, judging by the file (" in text
    found = [d.error**2 * 5 for d in read(folder).comparisons.against(METRIC).values() if d.error]
    sd = np.sqrt(np.mean(found))
    said = f"{number(sd * size)} in reference_auc, judging by these cells (standard deviation of paired differences"
    assert f"{said} {number(sd)})." in text


def test_a_variant_with_few_seeds_does_not_silence_the_others(tmp_path: Path) -> None:
    missing = {"v2-s3": "missing", "v2-s4": "missing"}
    text = verdict(write_folder(tmp_path, SCALES, range(5), ["generator.scale"], state=missing))
    assert "Some variants differ, but not all have the same seeds, so none is called the best." in text
    size = detectable(5, len(SCALES) - 2)
    assert size is not None
    of_some = [d for d in read(tmp_path).comparisons.against(METRIC).values() if d.error]
    found = [(d.error or 0) ** 2 * d.n for d in of_some]
    size *= float(np.sqrt(np.average(found, weights=[d.n - 1 for d in of_some])))
    assert f"With 5 seeds, 80% of such ablations find a difference of {number(size)} in" in text
    assert "no difference is tested" not in text


def test_the_power_is_that_of_the_variant_with_the_fewest_tested_seeds(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, SCALES, range(6), ["generator.scale"], state={"v2-s5": "missing"})
    assert "With 5 seeds, 80% of such ablations" in verdict(folder)


@pytest.mark.parametrize("unit", ["flops", "paper_flops"])
def test_compute_is_told_in_the_unit_of_the_budget(tmp_path: Path, unit: str) -> None:
    _, text = figures.compute(read(write_folder(tmp_path, SCALES, (0, 1), budget={unit: 1e12})))
    assert ("as the ELECTRA paper counts" in text) == (unit == "paper_flops")
    assert f"{2e12 if unit == 'paper_flops' else 1e12:.2e}" in text


def test_what_no_change_names_is_marked(tmp_path: Path) -> None:
    named = {"masking": {"type": "whole_word", "long_words": 9}}
    folder = write_folder(tmp_path, {"base": {}, "whole words": named, "more": {"masking.mask_prob": 0.3}}, range(5))
    _, words, more = variants = json.loads((folder / "plan.json").read_text())["variants"]
    words["differs"] = {"masking.type": ["replace_prob", "whole_word"], "masking.mask_prob": [0.25, 0.15]}
    words["differs"] |= {"masking.long_words": [None, 9], "masking.random_prob": [0.1, None]}
    words["beyond"] = ["masking.mask_prob", "masking.random_prob"]
    more["differs"] = {"masking.mask_prob": [0.25, 0.3]}
    change_plan(folder, variants=variants)
    with pytest.MonkeyPatch.context() as patch:
        synthetic.leave_out_pictures(patch)
        rows = Page(write_report(folder)).table("What differs from the baseline")
    assert ["whole words", "masking.mask_prob (not named)", "0.25", "0.15"] in rows
    assert ["more", "masking.mask_prob", "0.25", "0.3"] in rows
    _, line, _ = differences(AblationFolder(folder).plan)
    assert line.partition(":  ")[2] == (
        "masking.type replace_prob -> whole_word; masking.mask_prob 0.25 -> 0.15 (not named); "
        "masking.long_words null -> 9"
    )


def test_documents_and_references_widen_the_intervals_of_their_metric_alone(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, SCALES, range(5), ["generator.scale"])
    before = compared(folder)
    rng = np.random.default_rng(0)
    by_document = rng.normal(0, 0.5, (len(SCALES), 12))
    kept = AblationFolder(folder)
    for cell in kept.plan.cells:
        variant = list(SCALES).index(cell.variant)
        numbers = (by_document[variant] + rng.normal(0, 0.01, 12)).tolist()
        value = cell_result(kept, kept.plan, cell.id).metrics
        both = {k: value[k] for k in (METRIC, "reference_accuracy")}
        kept.note_measure(cell.id, cell.steps or 0, CORRUPTION, both, {METRIC: numbers})
    for name, rows in compared(folder).items():
        assert [row.mean for row in rows] == [row.mean for row in before[name]]
        for row, then in zip(rows[1:], before[name][1:], strict=True):
            assert row.difference.mean == then.difference.mean
            ratio = row.difference.half / then.difference.half
            assert ratio > 5 if name == METRIC else ratio == 1
    # Those of another measure are left out; the other seeds show their contribution.
    text = verdict(folder)
    assert "cover other documents" not in text
    assert "There are only 12 test documents:" in text
    add_documents(folder / "cells" / "v0-s0", {METRIC: [0.5] * 12}, "fixed_corruption-0000000000")
    for row, then in zip(compared(folder)[METRIC][1:], before[METRIC][1:], strict=True):
        assert row.difference.half > 5 * then.difference.half
    for seed in range(4):
        add_documents(folder / "cells" / f"v1-s{seed}", {})
    assert re.search(r"The intervals of generator.scale=0.5 .* cover other documents, .* two seeds", verdict(folder))
    # With more reasons for caution, the least important sentence is left out.
    measures = json.loads((folder / "plan.json").read_text())["measures"]
    measures[0]["metrics"][METRIC]["comparable"] = False
    change_plan(folder, measures=measures)
    assert len(said(folder)) == SENTENCES
    assert "80% of such ablations" not in " ".join(said(folder))
    # Documents of an earlier measurement are removed when it is repeated.
    for numbers in ({METRIC: [0.5] * 12}, {}):
        kept.note_measure("v0-s0", STEPS, CORRUPTION, {METRIC: 0.5}, *([numbers] if numbers else []))
        assert cell_result(kept, kept.plan, "v0-s0").documents == numbers


@pytest.mark.parametrize("number", [MANY_DOCUMENTS - 1, MANY_DOCUMENTS])
def test_few_documents_are_a_warning(tmp_path: Path, number: int) -> None:
    folder, rng = write_folder(tmp_path, SCALES, range(2)), np.random.default_rng(0)
    for cell in folder.glob("cells/*"):
        add_documents(cell, {METRIC: rng.normal(size=number).tolist()})
    assert (f"only {number} test documents" in verdict(folder)) == (number < MANY_DOCUMENTS)


def test_references_are_a_part_of_the_interval_of_their_mean(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    apart = rng.normal(0, 0.05, (3, len(SCALES)))

    def score(reference: int, variant: int, seed: int) -> float:
        return float(0.7 + apart[reference, variant] + 0.002 * rng.normal())

    against = read(synthetic.add_references(write_folder(tmp_path, SCALES, range(5)), score)).comparisons.against
    found, part = (against(name)["generator.scale=0.5"] for name in ("auc", "auc_small"))
    assert (found.half or 0) > 3 * (part.half or 0)


FIVE = range(5)
APART = (0.50, 0.60, 0.55, 0.52)
NONE = "No variant is distinguishably better"


def noise(variant: int, seed: int) -> float:
    """Seeds differ by a hundredth, and variants within a seed by a thousandth."""
    return 0.01 * seed + 0.001 * ((seed * 7 + variant * 3) % 5)


def scored(*means: float) -> Score:
    return lambda variant, seed: means[variant] + noise(variant, seed)


def always(value: float) -> Score:
    return lambda variant, seed: value


def made(folder: Path, score: Score, seeds: Sequence[int] = FIVE) -> Path:
    return write_folder(folder, SCALES, seeds, scores=score)


def said(folder: Path) -> list[str]:
    found = sentences(read(folder))
    assert len(found) <= SENTENCES
    return found


def test_no_variant_is_the_best_if_none_beats_the_baselines(tmp_path: Path) -> None:
    """Even if they clearly differ from each other: 0.60 and 0.50, where suspecting rare words gives 0.65."""
    folder = made(tmp_path / "a", scored(*APART))
    before = said(folder)
    assert before[0].startswith("generator.scale=0.5 has the best (the highest) mean reference_auc")
    first, second, *_ = said(add_baselines(folder, rare=scored(0.65, 0.65, 0.65, 0.65), chance=always(0.5)))
    assert first.startswith(f"{NONE} than the baselines that need no training (the rare and the chance)")
    assert second == before[0].replace("best (the highest)", "highest")
    # Not even a single variant, or one that no test finds better.
    alone = write_folder(tmp_path / "b", dict([*SCALES.items()][:1]), FIVE, scores=scored(0.5))
    assert said(add_baselines(alone, rare=always(0.6)))[0].startswith("No variant is")
    near = made(tmp_path / "c", lambda variant, seed: 0.51 + 0.04 * (-1) ** (seed + variant))
    assert said(add_baselines(near, chance=always(0.5)))[0].startswith(NONE)


@pytest.mark.parametrize(("own", "found"), [(0.71, False), (0.50, True)])
def test_some_variants_may_beat_them(tmp_path: Path, own: float, found: bool) -> None:
    folder, floors = made(tmp_path, scored(0.50, 0.70, 0.55, 0.52)), [0.60, own, 0.60, 0.60]
    first, second, *_ = said(add_baselines(folder, rare=lambda variant, seed: floors[variant]))
    assert first.startswith(NONE) == (not found)
    if found:
        assert first.startswith("generator.scale=0.5 has the best (the highest) mean")
        worse = "generator.scale=0.25, generator.scale=0.75 and generator.scale=1.0 are not distinguishably better"
        assert second.startswith(worse)


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
        add_documents(cell, {"reference_auc": own, "rare": [0.5, 0.5, 0.5, 0.5]})
    assert said(folder)[0].startswith(NONE)


@pytest.mark.parametrize(("seeds", "none"), [(FIVE, NONE), (range(2), "No variant is better")])
def test_lower_can_be_better(tmp_path: Path, seeds: Sequence[int], none: str) -> None:
    folder = made(tmp_path, scored(6.6, 6.5, 6.7, 6.8), seeds)
    plan = json.loads((folder / "plan.json").read_text())
    plan["measures"][0]["metrics"]["reference_auc"]["higher_is_better"] = False
    (folder / "plan.json").write_text(json.dumps(plan))
    assert said(add_baselines(folder, frequencies=always(6.4)))[0].startswith(none)
    first = said(add_baselines(folder, frequencies=always(7.0)))[0]
    assert first.startswith("generator.scale=0.5 has the best (the lowest) mean" if len(seeds) == 5 else "With 2 seeds")


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
    [first, *_] = [paragraph.text for paragraph in page.all("p") if "main" in paragraph["class"]]
    assert first.startswith("No variant")


@pytest.mark.parametrize("keys", [[], ["generator.scale"]])
def test_charts_have_a_line_for_each_baseline(tmp_path: Path, drawn: Drawn, keys: list[str]) -> None:
    folder = write_folder(tmp_path, SCALES, FIVE, keys, scores=scored(*APART))
    picture = figures.leading(read(add_baselines(folder, rare=always(0.65), chance=always(0.5))))
    assert picture is not None
    assert "the rare (dashed), the chance (dotted)" in picture.note
    for style, height in (("--", 0.65), (":", 0.5)):
        [line] = [line for line in drawn["leading"].lines if line.get_linestyle() == style]
        assert (line.get_ydata() if keys else line.get_xdata())[0] == pytest.approx(height)
