"""The page of a fine-tuning: what a reader sees of its seeds, splits, gaps and wrong predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from electra_lab.presentation.finetuning_page import read_results, truncation, write_report
from electra_lab.storage.finetuning_folder import FinetuningFolder
from registry.errors import CheckpointError
from tests.electra_lab.presentation import finetuned
from tests.pages import Page

VALUES = {"accuracy": [0.81, 0.86, 0.79, 0.9, 0.83], "matthews": [0.5, -0.61, 0.45, 0.7, 0.55]}


def both(*seeds: int) -> dict[int, finetuned.Splits]:
    return {seed: {"validation": {name: each[seed] for name, each in VALUES.items()}} for seed in seeds}


def page_of(folder: Path) -> Page:
    """Write the page of a fine-tuning; returns it."""
    written = write_report(FinetuningFolder(folder))
    assert written == folder / "report.html"
    return Page(written)


def results_of(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text())


def headings(page: Page) -> list[str]:
    return [each.text for each in page.all("h2")]


pytestmark = pytest.mark.usefixtures("no_curve")


def test_the_numbers_over_the_seeds_are_those_of_scipy(tmp_path: Path) -> None:
    page = page_of(finetuned.write_finetuned(tmp_path / "out", both(*range(5))))
    header, *rows = page.table("Results on validation")
    assert header == ["metric", "median", "mean", "95% interval", "SD", *(f"seed {n}" for n in range(5)), "meaning"]
    assert [row[0] for row in rows] == ["accuracy", "Matthews correlation"]
    for row, (name, values) in zip(rows, VALUES.items(), strict=True):
        mean, error = np.mean(values), stats.sem(values)
        low, high = stats.t.interval(0.95, 4, loc=mean, scale=error)
        expected = [f"{each:.3f}" for each in (np.median(values), mean)]
        expected += [f"{low:.3f} to {high:.3f}", f"{np.std(values, ddof=1):.3f}", *(f"{each:.3f}" for each in values)]
        assert row[1:] == [*expected, finetuned.METRICS[name]["summary"]]
        found = results_of(tmp_path / "out")["validation"][name]
        assert found["values"] == {str(seed): value for seed, value in enumerate(values)}
        numbers = [found[key] for key in ("median", "mean", "sd", "low", "high")]
        assert numbers == pytest.approx([np.median(values), mean, np.std(values, ddof=1), low, high], rel=1e-12)


def test_one_seed_has_a_number_and_no_statistics(tmp_path: Path) -> None:
    page = page_of(finetuned.write_finetuned(tmp_path / "out", both(3)))
    assert page.table("Results on validation") == [
        ["metric", "seed 3", "meaning"],
        ["accuracy", "0.900", finetuned.METRICS["accuracy"]["summary"]],
        ["Matthews correlation", "0.700", finetuned.METRICS["matthews"]["summary"]],
    ]
    found = results_of(tmp_path / "out")["validation"]["accuracy"]
    assert found == {"median": 0.9, "mean": 0.9, "sd": None, "low": None, "high": None, "values": {"3": 0.9}}


def test_the_leading_metric_is_the_first_that_was_declared(tmp_path: Path) -> None:
    """Whatever the order of the task's results: `evaluate.metric` chooses it, and with it the seed that is shown."""
    metrics = {name: finetuned.METRICS[name] for name in ("matthews", "accuracy")}
    folder = finetuned.write_finetuned(tmp_path / "out", both(0, 1, 4), metrics=metrics)
    assert [row[0] for row in page_of(folder).table("Results on validation")[1:]] == [
        "Matthews correlation",
        "accuracy",
    ]
    assert list(results_of(folder)["validation"]) == ["matthews", "accuracy"]
    assert "Provenance of seed 0" in page_of(folder).text  # 0.5 is the median of matthews, 0.83 that of accuracy
    folder = finetuned.write_finetuned(tmp_path / "other", both(0, 1, 4))
    assert "Provenance of seed 4" in page_of(folder).text


@pytest.mark.parametrize(
    ("values", "shown"),
    [((0.1, 0.5, 0.9), 1), ((0.9, 0.1, 0.5), 2), ((0.25, 0.5), 0), ((0.125, 0.25, 0.75, 0.875), 1), ((None, 0.3), 1)],
)
def test_tables_and_errors_are_of_the_seed_nearest_to_the_median(
    tmp_path: Path, values: tuple[float | None, ...], shown: int
) -> None:
    folder = finetuned.write_finetuned(tmp_path / "out", {})
    for seed, splits in finetuned.scores("accuracy", *values).items():
        table = {"title": "Confusion", "header": ["", "a"], "rows": [["a", seed]]}
        wrong = [{"id": f"of seed {seed}", "prediction": "a", "correct": False}]
        finetuned.write_seed(folder, seed, splits, tables={"validation": [table]}, predictions={"validation": wrong})
    page = page_of(folder)
    assert f"On validation, seed {shown}." in page.text
    assert page.table("Confusion")[1:] == [["a", str(shown)]]
    assert page.facts()["id"] == f"of seed {shown}"
    assert f"On validation, seed {shown}, the most certain first." in page.text
    assert f"Provenance of seed {shown}" in page.text
    assert f"seed-{shown}" in page.all("pre")[1].text


@pytest.mark.parametrize("number", [200, 3000])
def test_long_tables_are_cut_and_the_page_says_so(tmp_path: Path, number: int) -> None:
    folder = finetuned.write_finetuned(tmp_path / "out", {})
    table = {"title": "Words by tag", "header": ["", "words"], "rows": [[f"tag {n}", n] for n in range(number)]}
    finetuned.write_seed(folder, 0, {"validation": {"accuracy": 0.5}}, tables={"validation": [table]})
    page = page_of(folder)
    assert page.table("Words by tag")[1:] == [[f"tag {n}", str(n)] for n in range(200)]
    assert ("3,000 rows" in page.text) == (number == 3000)


def test_a_number_that_is_missing_is_a_dash_and_the_others_count(tmp_path: Path) -> None:
    folder = finetuned.write_finetuned(tmp_path / "out", finetuned.scores("accuracy", 0.5, None, 0.8))
    row = page_of(folder).table("Results on validation")[1]
    assert row[:3] == ["accuracy", "0.650", "0.650"]
    assert row[5:8] == ["0.500", "-", "0.800"]
    assert results_of(folder)["validation"]["accuracy"]["values"] == {"0": 0.5, "2": 0.8}


def test_a_metric_without_any_number_is_a_row_of_dashes(tmp_path: Path) -> None:
    """The examples have labels, so the page must not deny that."""
    folder = finetuned.write_finetuned(tmp_path / "out", finetuned.scores("accuracy", None, None))
    page = page_of(folder)
    assert page.table("Results on validation")[1] == ["accuracy", *"------", finetuned.METRICS["accuracy"]["summary"]]
    assert "no labels" not in page.text
    found = results_of(folder)["validation"]["accuracy"]
    assert found == {"median": None, "mean": None, "sd": None, "low": None, "high": None, "values": {}}
    assert "Provenance of seed 0" in page.text


def test_a_split_without_labels_says_where_its_predictions_are(tmp_path: Path) -> None:
    seeds = {0: {"validation": {"accuracy": 0.5}, "test": {}}}
    page = page_of(finetuned.write_finetuned(tmp_path / "out", seeds))
    assert headings(page)[:2] == ["Results on validation", "Results on test"]
    assert (
        "The examples have no labels, so there is nothing to measure; the predictions are in predictions-test.jsonl."
        in page.text
    )
    assert results_of(tmp_path / "out")["test"] == {}
    assert page.text.count("no labels") == 1


def test_seeds_that_are_not_finished_are_named(tmp_path: Path) -> None:
    folder = finetuned.write_finetuned(tmp_path / "out", both(0, 3), config={"seeds": [0, 1, 3, 2]})
    finetuned.write_seed(folder, 1, None)
    page = page_of(folder)
    assert page.facts()["not finished"] == "seeds 1, 2"
    assert page.table("Results on validation")[0][5:] == ["seed 0", "seed 3", "meaning"]
    finetuned.write_seed(folder, 2, both(2)[2])
    assert page_of(folder).facts()["not finished"] == "seed 1"
    (folder / "seed-1" / "results.json").write_text((folder / "seed-0" / "results.json").read_text())
    assert "not finished" not in page_of(folder).facts()


def test_without_a_finished_seed_the_page_says_so(tmp_path: Path) -> None:
    folder = finetuned.write_finetuned(tmp_path / "out", {}, config={"seeds": [0]})
    finetuned.write_seed(folder, 0, None)
    page = page_of(folder)
    assert "No seed has finished yet." in page.text
    assert headings(page) == ["Config"]
    assert page.facts() == {}
    assert results_of(folder) == {}
    assert read_results(FinetuningFolder(folder)) == ([], {})


def test_metrics_are_shown_if_they_are_declared_and_by_their_names_without_a_title(tmp_path: Path) -> None:
    seeds = {0: {"validation": {"own_score": 0.5, "older": 0.9}}}
    page = page_of(finetuned.write_finetuned(tmp_path / "out", seeds, metrics={"own_score": {}}))
    assert [row[0] for row in page.table("Results on validation")] == ["metric", "own_score"]


def test_the_facts_say_what_was_trained_on_what(tmp_path: Path) -> None:
    page = page_of(finetuned.write_finetuned(tmp_path / "out", both(0)))
    assert page.all("h1")[0].text == "animals"
    assert page.all("title")[0].text == "animals · electra_lab"
    assert "electra_lab fine-tuning out" in page.text
    assert page.facts() == {
        "model": "discriminator of runs/small, weights pretrained",
        "task": "text_classification on table",
        "examples": "train 67,349, validation 872",
        "parameters": "network 13,000, head 34, total 13,034",
        "device": "cpu, fp32, threads: 1",
        "training": "1,200 steps, 3.21e+12 FLOPs",
    }


def test_a_number_on_the_data_that_chose_the_weights_is_called_too_good(tmp_path: Path) -> None:
    config = {"evaluate": {"select": "best", "errors": 10}}
    facts = page_of(finetuned.write_finetuned(tmp_path / "out", both(0), config=config)).facts()
    assert facts["weights"] == "the best on validation data, whose numbers are too good for that reason"


def test_what_rows_lack_is_said_of_each_split(tmp_path: Path) -> None:
    metrics = finetuned.METRICS | {"dropped_words": {}}
    shares = {"train": 0.25, "validation": 0.0, "test": 0.0333}
    given = {"cut_examples": shares, "dropped_words": {"train": 1.0}, "unknown": {"train": 0.5}}
    folder = finetuned.write_finetuned(tmp_path / "out", both(0, 1), metrics=metrics, lost=given)
    expected = [("cut examples", "train 25.0%, validation 0.0%, test 3.3%"), ("dropped_words", "train 100.0%")]
    assert truncation(FinetuningFolder(folder), 0) == expected
    facts = page_of(folder).facts()
    assert list(facts.items())[5:7] == expected
    assert "unknown" not in facts
    assert truncation(FinetuningFolder(folder), 7 if finetuned.write_seed(folder, 7, None) else 0) == []


def test_the_page_has_the_config_loads_nothing_and_is_the_same_again(tmp_path: Path) -> None:
    folder = finetuned.write_finetuned(tmp_path / "out", both(0, 1))
    page = page_of(folder)
    assert page.source.startswith("<!doctype html>")
    assert page.all("pre")[0].text == (folder / "finetuning.yaml").read_text()
    assert json.loads(page.all("pre")[1].text) == json.loads((folder / "seed-0" / "provenance.json").read_text())
    assert not {"script", "link", "img"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name in ("src", "href")]
    assert page_of(folder).source == page.source


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("finetuning.yaml", "name: ["),
        ("finetuning.yaml", "name: animals\n"),
        ("finetuning.yaml", "task: 3\n"),
        ("seed-0/results.json", "{}"),
        ("seed-0/provenance.json", "1"),
        ("seed-0/metrics.jsonl", "{}\n{}\n"),
        ("seed-0/predictions-validation.jsonl", '{"id"\n'),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str) -> None:
    monkeypatch.undo()  # the curve reads metrics.jsonl
    folder = finetuned.write_finetuned(tmp_path / "out", both(0))
    (folder / file).write_text(text)
    with pytest.raises(CheckpointError) as caught:
        write_report(FinetuningFolder(folder))
    assert str(caught.value).startswith(f"{folder / file}:")
    assert not (folder / "report.html").exists()
