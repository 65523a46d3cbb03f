"""The numbers of an ablation's page, table.csv and table.md: each is that of its variant, read in its own direction."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from electra_lab.analysis.results import read
from electra_lab.presentation.sweep_figures import compute
from electra_lab.presentation.sweep_page import write_report
from tests.electra_lab.presentation.synthetic import (
    CORRUPTION,
    GRID,
    NAMED,
    OWN,
    SCALES,
    STEPS,
    TOKENS_A_STEP,
    score,
    write_folder,
)
from tests.pages import Page

STATE = {"v1-s2": "failed", "v3-s4": "unfinished", "v2-s0": "missing", "v0-s1": "unmeasured", "v2-s3": "begun",
         "v3-s0": "partial", "v3-s1": "cleaned"}  # fmt: skip

pytestmark = pytest.mark.usefixtures("plain")


def markdown(folder: Path) -> dict[str, list[list[str]]]:
    """Return the tables of table.md by their titles, as cells."""
    parts = (folder / "table.md").read_text(encoding="utf-8").split("## ")[1:]
    found = {title: text.strip().splitlines() for title, text in (part.split("\n", 1) for part in parts)}
    return {
        title: [[each.strip() for each in line.removeprefix("| ").removesuffix(" |").split(" | ")] for line in rows]
        for title, rows in found.items()
    }


def spreadsheet(folder: Path) -> dict[tuple[str, int], dict[str, str]]:
    with (folder / "table.csv").open(newline="") as stream:
        return {(row["variant"], int(row["seed"])): row for row in csv.DictReader(stream)}


def change_measures(folder: Path, **values: Any) -> None:
    """Change what the plan says of each metric."""
    plan = json.loads((folder / "plan.json").read_text())
    for measure in plan["measures"]:
        for metric in measure["metrics"].values():
            metric.update(values)
    (folder / "plan.json").write_text(json.dumps(plan))


def test_the_table_of_cells_has_every_number(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, SCALES, range(5), ["generator.scale"], state=STATE)
    write_report(folder)
    rows = spreadsheet(folder)
    assert list(rows) == [(label, seed) for label in SCALES for seed in range(5)]
    states = {"partial": "unmeasured", "begun": "unfinished", "cleaned": "done"}
    for i, row in enumerate(rows.values()):
        variant, seed = divmod(i, 5)
        state = STATE.get(f"v{variant}-s{seed}", "done")
        assert row["status"] == states.get(state, state)
        assert int(row["steps"]) == STEPS - 40 * variant
        assert float(row["flops"]) == pytest.approx(1e12 * (1 - 0.001 * variant))
        assert float(row["paper_flops"]) == pytest.approx(2e12 * (1 - 0.001 * variant))
        assert int(row["parameters"]) == 3_700_000 + 500_000 * (variant + 1)
        measured = state in ("done", "partial", "cleaned")
        assert row["reference_auc"] == (str(score(variant, seed)) if measured else "")
        assert row["own_loss"] == (str(6 - 3 * score(variant, seed)) if measured and state != "partial" else "")
        trained = state not in ("missing", "begun", "unfinished", "failed")
        assert row["tokens"] == (str((STEPS - 40 * variant) * TOKENS_A_STEP) if trained else "")
        assert (float(row["seconds"]) if trained else row["seconds"]) == (
            pytest.approx((STEPS - 40 * variant) * TOKENS_A_STEP / (9000 - 500 * variant)) if trained else ""
        )


def test_a_run_counts_and_not_its_plan(folder: Path) -> None:
    """The plan assumes the largest vocabulary; the trained tokenizer may have found fewer tokens."""
    file = folder / "cells" / "v1-s0" / "provenance.json"
    real = {"steps": 700, "flops": 300_000_000_000, "parameters": {"discriminator": 40, "shared": 0, "total": 50}}
    file.write_text(json.dumps(json.loads(file.read_text()) | real))
    write_report(folder)
    row = spreadsheet(folder)["generator.scale=0.5", 0]
    assert (row["steps"], row["flops"], row["parameters"]) == ("700", "300000000000", "50")
    other = spreadsheet(folder)["generator.scale=0.5", 1]
    assert (other["steps"], other["parameters"]) == (str(STEPS - 40), "4700000")
    assert "3.00e+11 and" in compute(read(folder))[1]
    (folder / "cells" / "v1-s0" / "measures.json").unlink()
    write_report(folder)
    # It has come to the plan's steps, not to its own.
    assert spreadsheet(folder)["generator.scale=0.5", 0]["status"] == "unfinished"


def test_tables_have_means_and_paired_differences(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, GRID, range(5), ["generator.scale", "masking.mask_prob"])
    page = Page(write_report(folder))
    tables = markdown(folder)
    lines, losses = tables["reference_auc, higher is better"], tables["own_loss, lower is better"]
    assert len(lines) == len(losses) == 2 + len(GRID)
    assert [line[0] for line in lines[2:]] == list(GRID)
    base = [score(0, seed) for seed in range(5)]
    raw = []
    for i, line in enumerate(lines[2:]):
        values = [score(i, seed) for seed in range(5)]
        interval = stats.t.interval(0.95, 4, sum(values) / 5, stats.sem(values))
        mean = f"{sum(values) / 5:.4f} ± {(interval[1] - interval[0]) / 2:.4f}"
        assert line[1:3] == ["5", mean]
        expected = ["baseline"]
        if i:
            oracle = stats.ttest_rel(values, base)
            raw.append(float(oracle.pvalue))
            low, high = oracle.confidence_interval(0.95)
            expected = [f"{(sum(values) - sum(base)) / 5:+.4f} [{low:+.4f}, {high:+.4f}]"]
        assert line[3:4] == expected
        assert (
            losses[2 + i][2].split(" ± ")[0] == f"{6 - 3 * sum(values) / 5:.3f}"
        )  # the own loss is 6 - 3 times the AUC
        if i:
            assert losses[2 + i][3].split(" [")[0] == f"{3 * (sum(base) - sum(values)) / 5:+.4f}"
        row = next(row for row in page.rows if row[0] == line[0] and mean in row)
        assert row[1:5] == ["5", mean, expected[0], line[4]]
        if i:
            assert row[5] in ("better", "worse", "")
    largest = max(range(5), key=raw.__getitem__)
    assert lines[3 + largest][4] == p_text(raw[largest] / 0.8)  # Holm leaves the largest as it is
    smallest = min(range(5), key=raw.__getitem__)
    assert lines[3 + smallest][4] == p_text(5 * raw[smallest] / 0.8)
    # Another metric is one of 10 comparisons of secondary ones, and of 10 pairs of the five variants by the primary.
    [first] = {line[4] for line in losses[2:] if line[0] == list(GRID)[1 + smallest]}
    assert first == p_text(20 * raw[smallest] / 0.2)


def p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else "1.00" if p > 1 else f"{p:.2f}" if p >= 0.0995 else f"{p:.3f}"


BY_HAND = {
    0: (0.5, 0.6, 0.7, 0.55, 0.65), 1: (0.7, 0.8001, 0.9, 0.75, 0.85), 2: (0.3, 0.4002, 0.5, 0.35, 0.45),
    3: (0.5, 0.7, 0.7, 0.55, 0.65),
}  # fmt: skip


@pytest.fixture
def clear(tmp_path: Path) -> Path:
    """Clearly above the baseline, clearly below it, and not distinguishable; the loss is 6 - 3 AUC."""
    return write_folder(tmp_path / "clear", {"base": {}, "up": {"x": 1}, "down": {"x": 2}, "like": {"x": 3}}, range(5),
                        scores=lambda variant, seed: BY_HAND[variant][seed])  # fmt: skip


def readings(folder: Path) -> dict[str, list[str]]:
    """Return the last column by metric, of the page, which table.md must agree with."""
    table = Page(write_report(folder)).table("All metrics")
    found: dict[str, list[str]] = {}
    for row in table[1:]:
        if len(row) == 1:
            found[row[0].split()[0]] = []
        else:
            found[list(found)[-1]].append(row[5])
    for title, lines in markdown(folder).items():
        assert [line[5] for line in lines[2:]] == found[title.split(",")[0]]
    return found


def test_better_is_higher_or_lower_as_the_metric_says(clear: Path) -> None:
    assert readings(clear) == {
        "reference_auc": ["", "better", "worse", ""],
        "reference_accuracy": ["", "better", "worse", ""],
        "own_loss": ["", "better", "worse", ""],
    }
    page = Page(clear / "report.html")
    heads = [row[0] for row in page.table("All metrics") if len(row) == 1]
    assert heads[0].startswith("reference_auc ↑ higher is better")
    assert heads[2].startswith("own_loss ↓ lower is better")
    assert "the objective's own loss on test text, in nats" in heads[2]
    bold = [cell.text for cell in page.all("td") if "clear" in cell["class"]]
    assert bold == ["better", "worse"] * 3
    assert "up has the best (the highest) mean reference_auc, 0.8000" in page.text


def test_a_metric_of_each_cells_own_task_is_higher_or_lower_and_never_better(clear: Path) -> None:
    change_measures(clear, comparable=False)
    assert readings(clear) == {
        "reference_auc": ["", "higher", "lower", ""],
        "reference_accuracy": ["", "higher", "lower", ""],
        "own_loss": ["", "lower", "higher", ""],
    }
    text = Page(clear / "report.html").text
    assert "Each cell is measured on its own task, so the best number need not be the best model." in text
    assert "distinguishably better" not in text
    assert "distinguishably lower" in text
    assert "on each run's own task" in text
    assert "is better" not in text.replace("The reading is better or worse", "")
    assert "reference_auc, on each run's own task" in markdown(clear)


def test_the_baseline_is_that_of_the_plan(clear: Path) -> None:
    plan = json.loads((clear / "plan.json").read_text())
    (clear / "plan.json").write_text(json.dumps(plan | {"baseline": "up", "metric": "own_loss"}))
    assert readings(clear)["own_loss"] == ["worse", "", "worse", "worse"]
    assert [row[0] for row in markdown(clear)["own_loss, lower is better"][2:] if row[3] == "baseline"] == ["up"]
    assert next(iter(markdown(clear))) == "own_loss, lower is better"
    page = Page(clear / "report.html")
    [leading] = [group for group in page.all("tbody") if "leading" in group["class"]]
    assert [row.below[0].text for row in leading.all("tr")][1:] == ["base", "up", "down", "like"]
    assert page.text.index("own_loss ↓") < page.text.index("reference_auc ↑")
    assert "up (the baseline) has the best (the lowest) mean own_loss, 3.600" in page.text


def test_a_difference_over_fewer_seeds_than_its_row_has_says_over_how_many(tmp_path: Path) -> None:
    missing = {"v0-s5": "failed", "v0-s6": "failed", "v1-s0": "failed", "v1-s1": "failed", "v2-s5": "failed"}
    missing |= {"v2-s6": "failed", "v3-s0": "failed"}
    folder = write_folder(tmp_path / "a", SCALES, range(7), ["generator.scale"], state=missing)
    page = Page(write_report(folder))
    lines = markdown(folder)["reference_auc, higher is better"][2:]
    differences = [line[3] for line in lines]
    assert [line[1] for line in lines] == ["5", "5", "5", "6"]
    assert re.fullmatch(r"[+-][\d.]+ \[[+-][\d.]+, [+-][\d.]+\] over 3 pairs", differences[1])
    assert differences[3].endswith("] over 4 pairs")
    assert "over" not in differences[0] + differences[2]
    for line in lines:
        assert any(row[0] == line[0] and row[3:4] == line[3:4] for row in page.rows)
    few = "generator.scale=0.5 and generator.scale=1.0 are not tested, with fewer than 5 seeds in common with the"
    assert f"{few} baseline generator.scale=0.25." in page.text
    (folder / "cells" / "v1-s2" / "measures.json").unlink()
    (folder / "cells" / "v1-s3" / "measures.json").unlink()
    write_report(folder)
    assert markdown(folder)["reference_auc, higher is better"][3][3].endswith(" over 1 pair")


def test_a_metric_that_a_variant_lacks_is_a_dash_with_a_reason(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, NAMED, (0, 1), without={"mlm": ["reference_auc", "reference_accuracy"]})
    page = Page(write_report(folder))
    assert ["mlm", "0", "-", "-", "-", "not available"] in page.table("All metrics")
    assert "Measured, but without" not in page.text
    assert "No cell has" not in page.text
    rows = markdown(folder)["reference_auc, higher is better"]
    assert rows[-1] == ["mlm", "0", "-", "-", "-", "not available"]


def test_a_single_cell_that_lacks_metrics_is_named_once(folder: Path) -> None:
    file = folder / "cells" / "v1-s1" / "measures.json"
    file.write_text(json.dumps({CORRUPTION: {}, OWN: {"own_loss": 1.0}}))
    text = Page(write_report(folder)).text
    assert "Measured, but without reference_auc, reference_accuracy: generator.scale=0.5, seed 1." in text


def test_metrics_that_no_cell_has_are_named(tmp_path: Path) -> None:
    state = {f"v{v}-s{s}": "missing" for v in range(4) for s in (0, 1)}
    folder = write_folder(tmp_path, SCALES, (0, 1), state=state)
    page = Page(write_report(folder))
    assert "No cell has reference_auc, reference_accuracy, own_loss." in page.text
    assert page.table("All metrics") == [["variant", "seeds", "mean", "difference", "Holm p", "reading"]]
    assert markdown(folder) == {}


def test_hostile_names_are_text(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, NAMED, (0, 1))
    write_report(folder)
    assert r"masked \<b\>only\</b\> & $x$ \| \`all\` of the tokens" in (folder / "table.md").read_text()
    assert {label for label, _ in spreadsheet(folder)} == set(NAMED)


def test_the_text_begins_with_name_question_and_verdict(clear: Path) -> None:
    write_report(clear)
    name, question, verdict, table, *_ = (clear / "table.md").read_text().split("\n\n")
    assert (name, question) == ("# generator_size", "How large should the generator be?")
    assert verdict.startswith("Every variant has 5 seeds or more. up has the best (the highest) mean reference_auc")
    assert table == "## reference_auc, higher is better"
    page = Page(clear / "report.html").text
    assert all(sentence in page for sentence in verdict.replace("\\", "").split(". "))
