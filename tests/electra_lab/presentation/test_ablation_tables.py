"""The numbers of an ablation's page, table.csv and table.md belong to their variants, in each metric's direction."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from electra_lab.analysis.results import read
from electra_lab.presentation.sweep_page import cells_csv, write_report
from electra_lab.presentation.verdict import COLUMNS
from tests.electra_lab.presentation.synthetic import GRID, NAMED, SCALES, STEPS, TOKENS_A_STEP, score, write_folder
from tests.pages import Page

STATE = {"v1-s2": "failed", "v3-s4": "unfinished", "v2-s0": "missing", "v0-s1": "unmeasured", "v2-s3": "begun",
         "v3-s0": "partial", "v3-s1": "cleaned"}  # fmt: skip
AUC, LOSS = "reference_auc, higher is better", "own_loss, lower is better"

pytestmark = pytest.mark.usefixtures("plain")


def markdown(folder: Path) -> dict[str, list[list[str]]]:
    """Return the tables of table.md by their titles, as cells."""
    found = {}
    for part in (folder / "table.md").read_text(encoding="utf-8").split("## ")[1:]:
        title, text = part.split("\n", 1)
        found[title] = []
        for line in text.strip().splitlines():
            cells = line.removeprefix("| ").removesuffix(" |").split(" | ")
            found[title].append([cell.strip() for cell in cells])
    return found


def spreadsheet(folder: Path) -> dict[tuple[str, int], dict[str, str]]:
    with (folder / "table.csv").open(newline="") as stream:
        return {(row["variant"], int(row["seed"])): row for row in csv.DictReader(stream)}


def change_plan(folder: Path, **values: Any) -> None:
    file = folder / "plan.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_the_table_of_cells_has_every_number(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, SCALES, range(5), ["generator.scale"], state=STATE)
    write_report(folder)
    rows = spreadsheet(folder)
    assert list(rows) == [(label, seed) for label in SCALES for seed in range(5)]
    states = {"partial": "unmeasured", "begun": "unfinished", "cleaned": "done"}
    for i, row in enumerate(rows.values()):
        variant, seed = divmod(i, 5)
        state, steps, auc = STATE.get(f"v{variant}-s{seed}", "done"), STEPS - 40 * variant, score(variant, seed)
        measured = state in ("done", "partial", "cleaned")
        trained = state not in ("missing", "begun", "unfinished", "failed")
        assert (row["status"], int(row["steps"])) == (states.get(state, state), steps)
        assert float(row["flops"]) == pytest.approx(1e12 * (1 - 0.001 * variant))
        assert float(row["paper_flops"]) == pytest.approx(2e12 * (1 - 0.001 * variant))
        assert int(row["parameters"]) == 3_700_000 + 500_000 * (variant + 1)
        assert row["reference_auc"] == (str(auc) if measured else "")
        assert row["own_loss"] == (str(6 - 3 * auc) if measured and state != "partial" else "")
        assert row["tokens"] == (str(steps * TOKENS_A_STEP) if trained else "")
        seconds = steps * TOKENS_A_STEP / (9000 - 500 * variant)
        assert (float(row["seconds"]) if trained else row["seconds"]) == (pytest.approx(seconds) if trained else "")


@pytest.mark.parametrize("task", ["", "rte"])
def test_cells_of_fine_tunings_have_a_task_and_their_average_no_column(tmp_path: Path, task: str) -> None:
    folder = write_folder(tmp_path, SCALES, range(1))
    plan = json.loads((folder / "plan.json").read_text())
    average = {"type": "average", "key": "average", "metrics": {"average": {}}}
    change_plan(folder, cells=[cell | {"task": task} for cell in plan["cells"]], measures=[*plan["measures"], average])
    header, *rows = csv.reader(cells_csv(read(folder)).splitlines())
    named = ["variant", "task", "seed", "status"] if task else ["variant", "seed", "status"]
    assert (header[: len(named)], "average" in header) == (named, not task)
    assert {len(row) for row in rows} == {len(header)}
    assert {row[1] for row in rows} == {task or "0"}


def test_tables_have_means_and_paired_differences(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, GRID, range(5), ["generator.scale", "masking.mask_prob"])
    page = Page(write_report(folder))
    (_, rule, *lines), (_, _, *losses) = (markdown(folder)[title] for title in (AUC, LOSS))
    assert [line[0] for line in lines] == [line[0] for line in losses] == list(GRID)
    assert [line.endswith(":") for line in rule] == [False, True, True, True, True, False]  # numbers are on the right
    base, raw = [score(0, seed) for seed in range(5)], []
    for i, (line, loss) in enumerate(zip(lines, losses, strict=True)):
        values = [score(i, seed) for seed in range(5)]
        average, change = sum(values) / 5, (sum(values) - sum(base)) / 5
        low, high = stats.t.interval(0.95, 4, average, stats.sem(values))
        mean, difference = f"{average:.4f} ± {(high - low) / 2:.4f}", "baseline"
        assert loss[2].split(" ± ")[0] == f"{6 - 3 * average:.3f}"  # the loss is 6 - 3 times the AUC
        if i:
            oracle = stats.ttest_rel(values, base)
            raw.append(float(oracle.pvalue))
            low, high = oracle.confidence_interval(0.95)
            difference = f"{change:+.4f} [{low:+.4f}, {high:+.4f}]"
            assert loss[3].split(" [")[0] == f"{-3 * change:+.4f}"
        assert line[1:4] == ["5", mean, difference]
        row = next(row for row in page.rows if row[0] == line[0] and mean in row)
        assert row[1:5] == line[1:5]
        assert i == 0 or row[5] in ("better", "worse", "")
    largest = max(range(5), key=raw.__getitem__)
    assert lines[1 + largest][4] == p_text(raw[largest] / 0.8)  # Holm does not change the largest
    smallest = min(range(5), key=raw.__getitem__)
    assert lines[1 + smallest][4] == p_text(5 * raw[smallest] / 0.8)
    # The secondary family has 10 comparisons by other metrics, and 10 pairs of the five variants by the primary.
    assert losses[1 + smallest][4] == p_text(20 * raw[smallest] / 0.2)


def p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else "1.00" if p > 1 else f"{p:.2f}" if p >= 0.0995 else f"{p:.3f}"


BY_HAND = {
    0: (0.5, 0.6, 0.7, 0.55, 0.65), 1: (0.7, 0.8001, 0.9, 0.75, 0.85), 2: (0.3, 0.4002, 0.5, 0.35, 0.45),
    3: (0.5, 0.7, 0.7, 0.55, 0.65),
}  # fmt: skip


@pytest.fixture
def clear(tmp_path: Path) -> Path:
    """Variants clearly above the baseline, clearly below it, and not distinguishable; the loss is 6 - 3 AUC."""
    return write_folder(tmp_path / "clear", {"base": {}, "up": {"x": 1}, "down": {"x": 2}, "like": {"x": 3}}, range(5),
                        scores=lambda variant, seed: BY_HAND[variant][seed])  # fmt: skip


def readings(folder: Path) -> dict[str, list[str]]:
    """Return the last column by metric, of the page, which table.md must agree with."""
    found: dict[str, list[str]] = {}
    for row in Page(write_report(folder)).table("All metrics")[1:]:
        if len(row) == 1:
            found[row[0].split()[0]] = []
        else:
            found[list(found)[-1]].append(row[5])
    for title, lines in markdown(folder).items():
        assert [line[5] for line in lines[2:]] == found[title.split(",")[0]]
    return found


def test_better_is_higher_or_lower_as_the_metric_says(clear: Path) -> None:
    metrics = ("reference_auc", "reference_accuracy", "own_loss")
    assert readings(clear) == {metric: ["", "better", "worse", ""] for metric in metrics}
    page = Page(clear / "report.html")
    auc, _, loss = (row[0] for row in page.table("All metrics") if len(row) == 1)
    assert auc.startswith("reference_auc ↑ higher is better")
    assert loss.startswith("own_loss ↓ lower is better")
    assert "the objective's own loss on test text, in nats" in loss
    assert [cell.text for cell in page.all("td") if "clear" in cell["class"]] == ["better", "worse"] * 4
    assert page.table(AUC) == [[*COLUMNS], *(row for row in page.table("All metrics")[2:6])]
    assert "up has the best (the highest) mean reference_auc, 0.8000" in page.text
    # The text begins with name, question and verdict.
    name, question, verdict, legend, table, *_ = (clear / "table.md").read_text().split("\n\n")
    assert (name, question, table) == ("# generator_size", "How large should the generator be?", f"## {AUC}")
    assert all(sentence in page.text for sentence in re.sub(r"\\|\*\*", "", verdict).split(". "))
    assert "±" in legend
    assert legend.partition(" The difference")[0] in page.text


@pytest.mark.parametrize(("bounds", "shown"), [((0.0, 0.8), "[{:.4f}, 0.8000]"), ((0.0, 1.0), "±"), (None, "±")])
def test_a_mean_at_a_bound_has_the_ends_of_its_interval(clear: Path, bounds: Any, shown: str) -> None:
    plan = json.loads((clear / "plan.json").read_text())
    plan["measures"][0]["metrics"]["reference_auc"]["bounds"] = bounds
    change_plan(clear, measures=plan["measures"])
    write_report(clear)
    values = [float(row["reference_auc"]) for (label, _), row in spreadsheet(clear).items() if label == "up"]
    low, high = stats.t.interval(0.95, len(values) - 1, sum(values) / len(values), stats.sem(values))
    assert 0 < low < 0.8 < high < 1
    mean = next(line for line in markdown(clear)[AUC] if line[0] == "up")
    assert shown.format(low) in mean[2]


def test_a_metric_of_each_cells_own_task_is_higher_or_lower_and_never_better(clear: Path) -> None:
    measures = json.loads((clear / "plan.json").read_text())["measures"]
    for metric in (metric for measure in measures for metric in measure["metrics"].values()):
        metric["comparable"] = False
    change_plan(clear, measures=measures)
    higher = ["", "higher", "lower", ""]
    expected = {"reference_auc": higher, "reference_accuracy": higher, "own_loss": ["", "lower", "higher", ""]}
    assert readings(clear) == expected
    text = Page(clear / "report.html").text
    assert "Each cell is measured on its own task, so the best number may not mean the best model." in text
    assert "up has the highest mean reference_auc" in text
    assert "is better" not in text.replace("The reading is better or worse", "")
    assert "reference_auc, on each run's own task" in markdown(clear)


def test_the_baseline_is_that_of_the_plan(clear: Path) -> None:
    change_plan(clear, baseline="up", metric="own_loss")
    assert readings(clear)["own_loss"] == ["worse", "", "worse", "worse"]
    assert [row[0] for row in markdown(clear)[LOSS][2:] if row[3] == "baseline"] == ["up"]
    assert next(iter(markdown(clear))) == LOSS
    page = Page(clear / "report.html")
    [leading] = [group for group in page.all("tbody") if "leading" in group["class"]]
    assert [row.below[0].text for row in leading.all("tr")][1:] == ["base", "up", "down", "like"]
    assert page.text.index("own_loss ↓") < page.text.index("reference_auc ↑")
    assert "up has the best (the lowest) mean own_loss, 3.600" in page.text


def test_a_difference_over_fewer_seeds_than_its_row_has_says_over_how_many(tmp_path: Path) -> None:
    lost = ("v0-s5", "v0-s6", "v1-s0", "v1-s1", "v2-s5", "v2-s6", "v3-s0")
    folder = write_folder(tmp_path, SCALES, range(7), ["generator.scale"], state=dict.fromkeys(lost, "failed"))
    page = Page(write_report(folder))
    lines = markdown(folder)[AUC][2:]
    base, first, second, third = (line[3] for line in lines)
    assert [line[1] for line in lines] == ["5", "5", "5", "6"]
    assert re.fullmatch(r"[+-][\d.]+ \[[+-][\d.]+, [+-][\d.]+\] over 3 pairs", first)
    assert third.endswith("] over 4 pairs")
    assert "over" not in base + second
    shown = [(row[0], row[3:4]) for row in page.rows]
    assert all((line[0], line[3:4]) in shown for line in lines)
    assert [line[5] for line in lines] == ["", "3 seeds: not tested", "better", "4 seeds: not tested"]
    for seed in (2, 3):
        (folder / "cells" / f"v1-s{seed}" / "measures.json").unlink()
    write_report(folder)
    assert markdown(folder)[AUC][3][3].endswith(" over 1 pair")


def test_what_lacks_a_metric_is_named(tmp_path: Path) -> None:
    """A variant by a dash with a reason."""
    without = {"mlm": ["reference_auc", "reference_accuracy"]}
    folder = write_folder(tmp_path / "a", NAMED, (0, 1), without=without)
    page, row = Page(write_report(folder)), ["mlm", "0", "-", "-", "-", "not available"]
    assert row in page.table("All metrics")
    assert markdown(folder)[AUC][-1] == row
    assert r"masked \<b\>only\</b\> & $x$ \| \`all\` of the tokens" in (folder / "table.md").read_text()
    assert {label for label, _ in spreadsheet(folder)} == set(NAMED)

    folder = write_folder(tmp_path / "b", SCALES, (0, 1))
    for file in folder.glob("cells/*/measures.json"):
        file.unlink()
    page = Page(write_report(folder))
    assert page.table("All metrics") == [["variant", "seeds", "mean", "difference", "Holm p", "reading"]]
    assert markdown(folder) == {}
