"""The table of a suite, on the terminal and as a page: numbers, differences, gaps."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from electra_lab.presentation.suite_page import table_text, write_report
from electra_lab.storage.finetuning_folder import SuiteFolder
from registry.errors import CheckpointError
from tests.electra_lab.presentation.finetuned import METRICS, scores, write_suite
from tests.pages import Page

TASKS = {"sst2": "accuracy", "cola": "matthews", "rte": "accuracy"}
VALUES: dict[str, dict[str, Sequence[float | None]]] = {
    "ours": {
        "sst2": [0.91, 0.9, 0.92, 0.905, 0.91],
        "cola": [0.5, 0.61, 0.55, 0.58, 0.6],
        "rte": [0.6, 0.65, 0.61, 0.7, 0.62],
    },
    "random": {
        "sst2": [0.8, 0.79, 0.82, 0.81, 0.8],
        "cola": [0.1, 0.0, 0.2, -0.1, 0.1],
        "rte": [0.55, 0.66, 0.6, 0.62, 0.6],
    },
    "larger": {
        "sst2": [0.92, 0.915, 0.921, 0.92, 0.93],
        "cola": [0.6, 0.62, 0.65, 0.6, 0.63],
        "rte": [0.7, 0.64, 0.69, 0.71, 0.66],
    },
}
EVIL = "<script>x</script> & <b>"


def page_of(folder: Path) -> Page:
    written = write_report(SuiteFolder(folder))
    assert written == folder / "report.html"
    return Page(written)


def terminal(folder: Path) -> list[str]:
    return table_text(SuiteFolder(folder)).splitlines()


def on_terminal(folder: Path, models: int) -> list[list[str]]:
    """Return the rows of the terminal's table; columns are right-aligned."""
    lines = terminal(folder)[: models + 1]
    columns = len(lines[0].split())
    assert len({tuple(each.end() for each in re.finditer(r"\S+", line))[-columns:] for line in lines}) == 1
    return [line.split() for line in lines]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm (1979) by its definition: the largest of the multiplied p-values that are not above its own."""
    m = len(p_values)
    ranked = sorted(p_values)
    return [min(1.0, max((m - i) * p for i, p in enumerate(ranked) if p <= own)) for own in p_values]


def p_shown(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.0995 else f"p = {p:.2f}"


def differences(found: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """Return what scipy says of each model and task, against the first model."""
    first, *others = found
    pairs = [(model, task) for model in others for task in found[first]]
    arrays = {(m, t): (100 * np.array(found[m][t]), 100 * np.array(found[first][t])) for m, t in pairs}
    tests = {pair: stats.ttest_rel(*arrays[pair]) for pair in pairs}
    corrected = holm([float(tests[pair].pvalue) for pair in pairs])
    said = {}
    for pair, p in zip(pairs, corrected, strict=True):
        ours, theirs = arrays[pair]
        low, high = tests[pair].confidence_interval(0.95)
        mean = float(np.mean(ours - theirs))
        said[pair] = f"{mean:+.1f} [{low:+.1f}, {high:+.1f}] over {len(ours)} seeds, Holm {p_shown(p)}"
    return said


def test_medians_averages_and_differences_are_those_of_scipy(tmp_path: Path) -> None:
    folder = write_suite(tmp_path / "glue", VALUES, TASKS)
    page = page_of(folder)
    expected = []
    for model, each in VALUES.items():
        medians = [100 * np.median(np.array(values, float)) for values in each.values()]
        expected.append([model, *(f"{median:.1f}" for median in (*medians, np.mean(medians)))])
    header, *rows = page.table("Results")
    assert header == ["model", "sst2accuracy", "colaMatthews correlation", "rteaccuracy", "average"]
    assert rows == expected
    assert on_terminal(folder, 3) == [["sst2", "cola", "rte", "average"], *expected]
    said = differences(VALUES)
    assert len({text.split("Holm")[1] for text in said.values()}) > 3
    assert page.table("Differences") == [
        ["model", "task", "difference"], *([*pair, text] for pair, text in said.items()),
    ]  # fmt: skip
    assert terminal(folder)[4:] == [
        "",
        "median over seeds, times 100: sst2 accuracy, cola Matthews correlation, rte accuracy",
        *(f"{model} - ours on {task}: {text}" for (model, task), text in said.items()),
    ]
    assert [each.text for each in page.all("h2")] == ["Differences to ours", "Single results"]


def test_the_single_results_are_there_with_their_seeds(tmp_path: Path) -> None:
    found = {"ours": {"sst2": scores("accuracy", 0.1, 0.25, first=3), "rte": [0.5]}}
    folder = write_suite(tmp_path / "out", found, {"sst2": "accuracy", "rte": "accuracy"})
    assert page_of(folder).table("Single results") == [
        ["model", "task", "seeds", "values"],
        ["ours", "sst2", "2", "0.100 (seed 3), 0.250 (seed 4)"],
        ["ours", "rte", "1", "0.500 (seed 0)"],
    ]
    results = json.loads((folder / "results.json").read_text())
    assert results == {"ours": {"sst2": {"3": 0.1, "4": 0.25}, "rte": {"0": 0.5}}}


def test_the_page_has_the_name_of_the_suite_wherever_it_is(tmp_path: Path) -> None:
    folder = write_suite(tmp_path / "elsewhere" / "out", {"ours": {"sst2": [0.5]}}, {"sst2": "accuracy"}, name="mine")
    page = page_of(folder)
    assert page.all("h1")[0].text == "mine"
    assert page.all("title")[0].text == "mine · electra_lab"
    assert "electra_lab suite out. Medians over seeds, times 100; a dash is a gap." in page.text


# Gaps


def test_a_missing_task_is_a_dash_and_takes_the_average_along(tmp_path: Path) -> None:
    """The mean over the others would compare with no other mean."""
    found = {"ours": {"sst2": [0.5], "rte": [0.7]}, "other": {"sst2": [0.9]}, "none": {}}
    gaps, failures = {"cola": "has no .txt files."}, {"other on rte": "the loss was not finite"}
    folder = write_suite(tmp_path / "out", found, TASKS, gaps=gaps, failures=failures)
    expected = [["ours", "50.0", "-", "70.0", "-"], ["other", "90.0", "-", "-", "-"], ["none", "-", "-", "-", "-"]]
    page = page_of(folder)
    assert page.table("Results")[1:] == expected
    assert on_terminal(folder, 3)[1:] == expected
    assert page.facts() == {"cola": "left out: has no .txt files.", "other on rte": "failed: the loss was not finite"}
    assert terminal(folder)[-2:] == [
        "cola: left out: has no .txt files.", "other on rte: failed: the loss was not finite",
    ]  # fmt: skip
    assert "Gaps" in [each.text for each in page.all("h2")]
    assert ["none", "cola", "0", ""] in page.table("Single results")


@pytest.mark.parametrize("missing", ["gaps", "failures"])
def test_either_kind_of_gap_has_the_heading(tmp_path: Path, missing: str) -> None:
    given: Any = {missing: {"rte": "reason"}}
    page = page_of(write_suite(tmp_path / "out", {"ours": {"rte": []}}, {"rte": "accuracy"}, **given))
    assert [each.text for each in page.all("h2")] == ["Gaps", "Single results"]


def test_models_are_compared_at_the_seeds_that_both_have(tmp_path: Path) -> None:
    """A cell shows the median of its own seeds; a number that is missing counts as no seed."""
    found = {"ours": {"rte": [0.5, 0.6, None, 0.9]}, "other": {"rte": scores("accuracy", 0.75, 0.8, 0.85, first=1)}}
    folder = write_suite(tmp_path / "out", found, {"rte": "accuracy"})
    page = page_of(folder)
    assert page.table("Results")[1:] == [["ours", "60.0", "60.0"], ["other", "80.0", "80.0"]]
    ours, other = [0.6, 0.9], [0.75, 0.85]
    low, high = stats.ttest_rel(other, ours).confidence_interval(0.95)
    said = f"+5.0 [{100 * low:+.1f}, {100 * high:+.1f}] over 2 seeds: not tested"
    assert page.table("Differences")[1:] == [["other", "rte", said]]
    assert ["ours", "rte", "3", "0.500 (seed 0), 0.600 (seed 1), 0.900 (seed 3)"] in page.table("Single results")


def test_without_a_seed_in_common_there_is_no_difference(tmp_path: Path) -> None:
    found = {"ours": {"rte": [0.5]}, "other": {"rte": scores("accuracy", 0.75, first=1)}}
    folder = write_suite(tmp_path / "out", found, {"rte": "accuracy"})
    assert [each.text for each in page_of(folder).all("h2")] == ["Single results"]
    assert " - " not in table_text(SuiteFolder(folder))


@pytest.mark.parametrize(
    ("ours", "other", "said"),
    [
        ([0.5], [0.625], "+12.5 over 1 seed (one seed: no interval)"),
        ([0.5, 0.25], [0.25, 0.0], "-25.0 over 2 seeds (the same difference with every seed: no interval)"),
    ],
)
def test_what_cannot_be_tested_says_why(tmp_path: Path, ours: list[float], other: list[float], said: str) -> None:
    folder = write_suite(tmp_path / "out", {"ours": {"rte": ours}, "other": {"rte": other}}, {"rte": "accuracy"})
    assert page_of(folder).table("Differences")[1:] == [["other", "rte", said]]
    assert terminal(folder)[-1] == f"other - ours on rte: {said}"


def test_what_cannot_be_tested_is_not_part_of_the_correction(tmp_path: Path) -> None:
    tested = {"ours": {"rte": [0.5, 0.6, 0.9, 0.8, 0.7]}, "other": {"rte": [0.4, 0.58, 0.7, 0.75, 0.69]}}
    found = {model: {**each, "sst2": [0.5]} for model, each in tested.items()}
    folder = write_suite(tmp_path / "out", found, {"rte": "accuracy", "sst2": "accuracy"})
    assert page_of(folder).table("Differences")[1][2] == differences(tested)["other", "rte"]


# Metrics


def test_the_number_is_of_the_first_split_that_has_the_metric(tmp_path: Path) -> None:
    splits = {"train_dev": {"matthews": 0.1}, "validation": {"accuracy": 0.5}, "test": {"accuracy": 0.75}}
    null = {**splits, "validation": {"accuracy": None}}
    found = {"ours": {"rte": {0: splits}}, "diverged": {"rte": {0: null}}}
    folder = write_suite(tmp_path / "out", found, {"rte": "accuracy"})
    assert page_of(folder).table("Results")[1:] == [["ours", "50.0", "50.0"], ["diverged", "-", "-"]]


@pytest.mark.parametrize(("metrics", "title"), [(METRICS, "accuracy"), ({"accuracy": {}}, "accuracy"), ({}, "accuracy"),
                                                ({"accuracy": {"title": "share"}}, "share")])  # fmt: skip
def test_a_task_shows_the_title_of_its_metric(tmp_path: Path, metrics: dict[str, Any], title: str) -> None:
    """Of any model that has finished; without a title it is the name."""
    found = {"failed": {}, "unfinished": {"rte": {}}, "ours": {"rte": [0.5]}}
    folder = write_suite(tmp_path / "out", found, {"rte": "accuracy", "gap": "f1"}, metrics=metrics)
    (folder / "unfinished" / "rte" / "seed-0").mkdir()
    assert page_of(folder).table("Results")[0] == ["model", f"rte{title}", "gapf1", "average"]
    assert f"median over seeds, times 100: rte {title}, gap f1" in terminal(folder)


def test_nothing_of_the_data_becomes_part_of_the_page(tmp_path: Path) -> None:
    metrics = {"accuracy": {"title": EVIL}}
    found = {"ours": {"a & b": [0.5]}, "R&D <b>": {"a & b": [0.6]}}
    gaps = {"gap <b>": EVIL}
    page = page_of(
        write_suite(tmp_path / "out", found, {"a & b": "accuracy"}, gaps=gaps, metrics=metrics, failures={EVIL: EVIL})
    )
    assert not {"script", "b", "link"} & set(page.tags)
    assert page.facts() == {"gap <b>": f"left out: {EVIL}", EVIL: f"failed: {EVIL}"}
    assert page.table("Results")[2] == ["R&D <b>", "60.0", "60.0"]


@pytest.mark.parametrize(
    ("file", "text"),
    [("plan.json", "{"), ("suite.yaml", "models: {}"), ("suite.yaml", "["), ("ours/rte/seed-0/results.json", "{}")],
)
def test_a_damaged_file_is_named(tmp_path: Path, file: str, text: str) -> None:
    folder = write_suite(tmp_path / "out", {"ours": {"rte": [0.5]}}, {"rte": "accuracy"})
    (folder / file).write_text(text)
    with pytest.raises(CheckpointError) as caught:
        write_report(SuiteFolder(folder))
    assert str(caught.value).startswith(f"{folder / file}:")
    assert not (folder / "report.html").exists()
