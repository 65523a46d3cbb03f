"""The page of a fine-tuning: its seeds, splits, missing numbers and wrong predictions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from electra_lab.presentation.finetuning_page import closing, read_results, truncation, write_report
from electra_lab.storage.finetuning_folder import FinetuningFolder
from registry.errors import CheckpointError
from tests.electra_lab.presentation.axes import Drawn, lines, number_of, overlaps
from tests.electra_lab.presentation.finetuned import ID, METRICS, Splits, scores, write_finetuned, write_seed
from tests.pages import Page

VALUES = {"accuracy": [0.81, 0.86, 0.79, 0.9, 0.83], "matthews": [0.5, -0.61, 0.45, 0.7, 0.55]}
MEANINGS = [METRICS[name]["summary"] for name in VALUES]


def both(*seeds: int) -> dict[int, Splits]:
    found: dict[int, Splits] = {}
    for seed in seeds:
        found[seed] = {"validation": {name: values[seed] for name, values in VALUES.items()}}
    return found


def page_of(folder: Path) -> Page:
    """Write the page of a fine-tuning; returns it."""
    written = write_report(FinetuningFolder(folder))
    assert written == folder / "report.html"
    return Page(written)


def results_of(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text())


def headings(page: Page) -> list[str]:
    return [heading.text for heading in page.all("h2")]


pytestmark = pytest.mark.usefixtures("no_curve")


def test_the_numbers_over_the_seeds_are_those_of_scipy(tmp_path: Path) -> None:
    page = page_of(write_finetuned(tmp_path, both(*range(5))))
    header, *rows = page.table("Results on validation")
    assert header == ["metric", "median", "mean", "95% interval", "SD", *(f"seed {n}" for n in range(5)), "meaning"]
    assert [row[0] for row in rows] == ["accuracy", "Matthews correlation"]
    for row, meaning, (name, values) in zip(rows, MEANINGS, VALUES.items(), strict=True):
        median, mean, spread = np.median(values), np.mean(values), np.std(values, ddof=1)
        low, high = stats.t.interval(0.95, 4, loc=mean, scale=stats.sem(values))
        middle = [f"{median:.3f}", f"{mean:.3f}", f"{low:.3f} to {high:.3f}", f"{spread:.3f}"]
        assert row[1:] == [*middle, *(f"{value:.3f}" for value in values), meaning]
        found = results_of(tmp_path)["validation"][name]
        assert found["values"] == {str(seed): value for seed, value in enumerate(values)}
        numbers = [found[key] for key in ("median", "mean", "sd", "low", "high")]
        assert numbers == pytest.approx([median, mean, spread, low, high], rel=1e-12)


CONSTANT = {**METRICS, "accuracy": METRICS["accuracy"] | {"baselines": ["constant_accuracy"], "bounds": [0.0, 1.0]}}
CONSTANT["constant_accuracy"] = {"title": "the most frequent label"}


@pytest.mark.parametrize(
    ("values", "constant", "examples", "claim"),
    [
        ((0.494, 0.494, 0.494), 0.494, 600, "has not learned"),  # all predictions are one class
        ((0.91, 0.9, 0.89), 0.9, 600, "has not learned"),
        ((0.4,), 0.5, 2000, "has not learned"),
        ((0.52,), 0.5, 100, "not known"),
        ((0.52,), 0.5, 100_000, "has hardly learned"),
        ((0.6, 0.5, 0.9), 0.5, 100_000, "not known"),  # the seeds differ too much
        ((0.6, 0.61, 0.62), 0.5, 1000, "has begun to learn"),
        ((0.95,), 0.5, 100, "has learned"),
        ((0.95,), None, 100, ""),  # a task without baselines
    ],
)
def test_whether_the_task_was_learned_is_said_first(tmp_path: Path, values, constant, examples, claim: str) -> None:
    splits: dict[int, Splits] = {}
    for seed, value in enumerate(values):
        splits[seed] = {"validation": {"accuracy": value} | ({"constant_accuracy": constant} if constant else {})}
    data = {"store": "0123", "documents": {"train": 9, "validation": examples}}
    folder = FinetuningFolder(write_finetuned(tmp_path, splits, metrics=CONSTANT, data=data))
    page, said = page_of(folder.path), closing(folder, folder.path, 1.0)
    assert claim in said
    assert [bool(claim and claim in strong.text) for strong in page.all("strong")] == [True] * bool(claim)
    assert not claim or page.text.index(claim) < page.text.index("Results on validation")


@pytest.mark.parametrize(("value", "claim"), [(0.1, "has learned"), (2.0, "has not learned")])
def test_a_lower_error_than_that_of_constant_answers_is_learned(tmp_path: Path, value: float, claim: str) -> None:
    error = {"title": "error", "higher_is_better": False, "baselines": ["constant_error"]}
    splits: dict[int, Splits] = {0: {"validation": {"error": value, "constant_error": 0.9}}}
    data = {"store": "0123", "documents": {"train": 9, "validation": 600}}
    metrics = {"error": error, "constant_error": {"title": "the mean"}}
    folder = FinetuningFolder(write_finetuned(tmp_path, splits, metrics=metrics, data=data))
    assert claim in closing(folder, folder.path, 1.0)


def test_an_interval_stays_within_the_bounds_of_its_metric(tmp_path: Path) -> None:
    folder = write_finetuned(tmp_path / "accuracy", scores("accuracy", 0.0, 0.546, 0.0), metrics=CONSTANT)
    row = page_of(folder).table("Results on validation")[1]
    low, high = stats.t.interval(0.95, 2, loc=0.182, scale=stats.sem([0.0, 0.546, 0.0]))
    assert (low < 0, row[3]) == (True, f"0.000 to {high:.3f}")
    folder = write_finetuned(tmp_path / "matthews", scores("matthews", 0.0, 0.546, 0.0), metrics=CONSTANT)
    assert page_of(folder).table("Results on validation")[1][3].startswith("-0.")


def test_one_seed_has_a_number_and_no_statistics(tmp_path: Path) -> None:
    page = page_of(write_finetuned(tmp_path, both(3)))
    assert page.table("Results on validation") == [
        ["metric", "seed 3", "meaning"],
        ["accuracy", "0.900", MEANINGS[0]],
        ["Matthews correlation", "0.700", MEANINGS[1]],
    ]
    found = results_of(tmp_path)["validation"]["accuracy"]
    assert found == {"median": 0.9, "mean": 0.9, "sd": None, "low": None, "high": None, "values": {"3": 0.9}}


def test_the_leading_metric_is_the_first_that_was_declared(tmp_path: Path) -> None:
    """In any order of the task's results; `evaluate.metric` overrides it, and with it the displayed seed."""
    metrics = {name: METRICS[name] for name in ("matthews", "accuracy")}
    folder = write_finetuned(tmp_path / "out", both(0, 1, 4), metrics=metrics)
    page = page_of(folder)
    assert [row[0] for row in page.table("Results on validation")[1:]] == ["Matthews correlation", "accuracy"]
    assert list(results_of(folder)["validation"]) == ["matthews", "accuracy"]
    assert "Provenance of seed 0" in page.text  # 0.5 is the median of matthews, 0.83 that of accuracy
    assert "Provenance of seed 4" in page_of(write_finetuned(tmp_path / "other", both(0, 1, 4))).text


@pytest.mark.parametrize(
    ("values", "shown"),
    [((0.1, 0.5, 0.9), 1), ((0.9, 0.1, 0.5), 2), ((0.25, 0.5), 0), ((0.125, 0.25, 0.75, 0.875), 1), ((None, 0.3), 1)],
)
def test_tables_and_errors_are_of_the_seed_nearest_to_the_median(tmp_path: Path, values: Any, shown: int) -> None:
    folder = write_finetuned(tmp_path, {})
    for seed, splits in scores("accuracy", *values).items():
        table = {"title": "Confusion", "header": ["", "a"], "rows": [["a", seed]]}
        wrong = [{"id": f"of seed {seed}", "prediction": "a", "correct": False}]
        write_seed(folder, seed, splits, tables={"validation": [table]}, predictions={"validation": wrong})
    page = page_of(folder)
    assert page.table("Confusion")[1:] == [["a", str(shown)]]
    assert page.facts()["id"] == f"of seed {shown}"
    of_seed = f"seed {shown} (the nearest to the median)"
    for said in (f"On validation, {of_seed}.", f"{of_seed}, the most certain", f"Provenance of seed {shown}"):
        assert said in page.text
    assert f"seed-{shown}" in page.all("pre")[1].text


@pytest.mark.parametrize("number", [200, 3000])
def test_long_tables_are_cut_and_the_page_says_so(tmp_path: Path, number: int) -> None:
    table = {"title": "Words by tag", "header": ["", "words"], "rows": [[f"tag {n}", n] for n in range(number)]}
    page = page_of(write_finetuned(tmp_path, scores("accuracy", 0.5), tables={"validation": [table]}))
    assert page.table("Words by tag")[1:] == [[f"tag {n}", str(n)] for n in range(200)]
    assert ("3,000 rows" in page.text) == (number == 3000)


def test_a_number_that_is_missing_is_a_dash_and_the_others_count(tmp_path: Path) -> None:
    page = page_of(write_finetuned(tmp_path / "out", scores("accuracy", 0.5, None, 0.8)))
    row = page.table("Results on validation")[1]
    assert row[:3] + row[5:8] == ["accuracy", "0.650", "0.650", "0.500", "-", "0.800"]
    assert results_of(tmp_path / "out")["validation"]["accuracy"]["values"] == {"0": 0.5, "2": 0.8}
    # If all are missing, the examples do have labels.
    page = page_of(write_finetuned(tmp_path / "none", scores("accuracy", None, None)))
    assert page.table("Results on validation")[1] == ["accuracy", *"------", MEANINGS[0]]
    found = results_of(tmp_path / "none")["validation"]["accuracy"]
    assert found == {"median": None, "mean": None, "sd": None, "low": None, "high": None, "values": {}}
    assert "no labels" not in page.text
    assert "Provenance of seed 0" in page.text


def test_a_split_without_labels_says_where_its_predictions_are(tmp_path: Path) -> None:
    page = page_of(write_finetuned(tmp_path, {0: {"validation": {"accuracy": 0.5}, "test": {}}}))
    assert headings(page)[:2] == ["Results on validation", "Results on test"]
    assert page.text.count("no labels, so there is nothing to measure") == 1
    assert "the predictions are in predictions-test.jsonl." in page.text
    assert results_of(tmp_path)["test"] == {}


def test_seeds_that_are_not_finished_are_named(tmp_path: Path) -> None:
    folder = write_finetuned(tmp_path, both(0, 3), config={"seeds": [0, 1, 3, 2]})
    write_seed(folder, 1, None)
    page = page_of(folder)
    assert page.facts()["not finished"] == "seeds 1, 2"
    assert page.table("Results on validation")[0][5:] == ["seed 0", "seed 3", "meaning"]
    write_seed(folder, 2, both(2)[2])
    assert page_of(folder).facts()["not finished"] == "seed 1"
    write_seed(folder, 1, both(1)[1])
    assert "not finished" not in page_of(folder).facts()


def test_without_a_finished_seed_the_page_says_so(tmp_path: Path) -> None:
    folder = write_finetuned(tmp_path, {}, config={"seeds": [0]})
    write_seed(folder, 0, None)
    page = page_of(folder)
    assert "No seed has finished yet." in page.text
    assert (headings(page), page.facts(), results_of(folder)) == (["Config"], {}, {})
    assert read_results(FinetuningFolder(folder)) == ([], {})


def test_metrics_are_shown_if_they_are_declared_and_by_their_names_without_a_title(tmp_path: Path) -> None:
    seeds = {0: {"validation": {"own_score": 0.5, "older": 0.9}}}
    page = page_of(write_finetuned(tmp_path, seeds, metrics={"own_score": {}}))
    assert [row[0] for row in page.table("Results on validation")] == ["metric", "own_score"]


def test_the_facts_say_what_was_trained_on_what(tmp_path: Path) -> None:
    page = page_of(write_finetuned(tmp_path / "out", both(0)))
    assert (page.all("h1")[0].text, page.all("title")[0].text) == ("animals", "animals · electra_lab")
    assert "electra_lab fine-tuning out" in page.text
    assert page.facts() == {
        "model": "discriminator of runs/small, weights pretrained",
        "task": "text_classification on table",
        "examples": "train 67,349, validation 872",
        "parameters": "network 13,000, head 34, total 13,034",
        "device": "cpu, fp32, threads: 1",
        "training": "1,200 steps, 3.21e+12 FLOPs",
    }
    # A number on the data that selected the weights is marked as too good.
    config = {"evaluate": {"select": "best", "errors": 10}}
    facts = page_of(write_finetuned(tmp_path / "best", both(0), config=config)).facts()
    assert facts["weights"] == "the best on validation data, whose numbers are too good for that reason"


def test_what_rows_lack_is_said_of_each_split(tmp_path: Path) -> None:
    shares = {"train": 0.25, "validation": 0.0, "test": 0.0333}
    given = {"cut_examples": shares, "dropped_words": {"train": 1.0}, "unknown": {"train": 0.5}}
    folder = write_finetuned(tmp_path, both(0, 1), metrics=METRICS | {"dropped_words": {}}, lost=given)
    expected = [("cut examples", "train 25.0%, validation 0.0%, test 3.3%"), ("dropped_words", "train 100.0%")]
    assert truncation(FinetuningFolder(folder), 0) == expected
    facts = page_of(folder).facts()
    assert (list(facts.items())[5:7], "unknown" in facts) == (expected, False)
    write_seed(folder, 7, None)
    assert truncation(FinetuningFolder(folder), 7) == []


def test_the_page_has_the_config_loads_nothing_and_is_the_same_again(tmp_path: Path) -> None:
    folder = write_finetuned(tmp_path, both(0, 1))
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
        ("finetuning.yaml", "name: animals\n"), ("finetuning.yaml", "task: 3\n"), ("seed-0/results.json", "{}"),
        ("seed-0/provenance.json", "1"), ("seed-0/metrics.jsonl", "{}\n{}\n"),
        ("seed-0/predictions-validation.jsonl", '{"id"\n'),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str) -> None:
    monkeypatch.undo()  # the curve reads metrics.jsonl
    folder = write_finetuned(tmp_path, both(0))
    (folder / file).write_text(text)
    with pytest.raises(CheckpointError, match=f"^{folder / file}:"):
        write_report(FinetuningFolder(folder))
    assert not (folder / "report.html").exists()


EVIL = '<script>alert("x")</script> & <b>'
ONE = {0: {"validation": {"accuracy": 0.5}}}
BOTH = {0: {"validation": {"accuracy": 0.5}, "test": {"accuracy": 0.6}}}


def test_tables_show_their_numbers(tmp_path: Path) -> None:
    rows = [["cat", 12, 0.123456], ["dogs", 3, 1.0]]
    table = {"title": "Labels (rows)", "header": ["", "cat", "share"], "rows": rows}
    other = {"title": "Fields", "header": ["field", "accuracy"], "rows": [["syntax", 0.5]]}
    page = page_of(write_finetuned(tmp_path, BOTH, tables={"validation": [table], "test": [other]}))
    assert page.table("Labels (rows)") == [["", "cat", "share"], ["cat", "12", "0.123"], ["dogs", "3", "1.000"]]
    assert page.table("Fields")[1] == ["syntax", "0.500"]
    assert headings(page)[2:4] == ["Labels (rows)", "Fields"]
    assert [paragraph.text for paragraph in page.all("p")[1:]] == ["On validation, seed 0.", "On test, seed 0."]
    assert [cell["class"] for cell in page.all("td") if cell.text in ("12", "0.123")] == ["number", "number"]


def wrong(number: int, certainty: float | None = None, **fields: Any) -> dict[str, Any]:
    certain = {} if certainty is None else {"certainty": certainty}
    return {"id": f"w{number}", **fields, "prediction": "a", "label": "b", **certain, "correct": False}


RIGHT = {"id": "r", "prediction": "a", "label": "a", "certainty": 0.99, "correct": True}
UNKNOWN = {"id": "u", "prediction": 3.5, "correct": None}


@pytest.mark.parametrize(
    ("given", "errors", "shown"),
    [
        ([wrong(1, 0.6), RIGHT, wrong(2, 0.9), wrong(3, 0.7), UNKNOWN], 2, ["w2", "w3"]),
        ([wrong(2), wrong(1), wrong(3)], 10, ["w2", "w1", "w3"]),
        ([wrong(1, 0.5)], 0, []),
        ([RIGHT, UNKNOWN], 10, []),
    ],
)
def test_wrong_predictions_are_shown_the_most_certain_first(tmp_path, given, errors: int, shown) -> None:
    """Predictions without certainty keep their order; without errors there is no heading."""
    config = {"evaluate": {"select": "last", "errors": errors}}
    page = page_of(write_finetuned(tmp_path, BOTH, predictions={"validation": [RIGHT], "test": given}, config=config))
    listed = [facts for facts in page.all("dl") if facts.all("dt")[0].text == "id"]
    assert [facts.all("dd")[0].text for facts in listed] == shown
    assert ("On test, seed 0, the most certain first." in page.text) == bool(shown)
    assert (headings(page) == ["Results on validation", "Results on test", "Config"]) == (not shown)


def test_fields_are_cut_and_written_as_they_are(tmp_path: Path) -> None:
    lines = "one\u2028two\x85three"
    fields: dict[str, Any] = {"text": "é" * 401, "short": "é" * 400, "tags": ["Größe", "日本"]}
    fields |= {"score": 2 / 3, "count": 7, "none": None}
    wrongs = {"validation": [wrong(1, 0.5, **fields, lines=lines)]}
    facts = page_of(write_finetuned(tmp_path, ONE, predictions=wrongs)).facts()
    assert {name: facts[name] for name in ("id", *fields, "lines", "prediction", "label", "certainty")} == {
        "id": "w1", "text": "é" * 400 + "…", "short": "é" * 400, "tags": '["Größe", "日本"]', "score": "0.667",
        "count": "7", "none": "null", "lines": lines, "prediction": "a", "label": "b", "certainty": "0.500",
    }  # fmt: skip


def test_nothing_of_the_data_becomes_part_of_the_page(tmp_path: Path) -> None:
    table = {"title": EVIL, "header": ["", EVIL], "rows": [[EVIL, 1]]}
    page = page_of(write_finetuned(
        tmp_path, {0: {"validation": {EVIL: 0.5}, EVIL.replace("/", ""): {}}},
        metrics={EVIL: {"title": EVIL, "summary": EVIL}}, tables={"validation": [table]}, platform=EVIL,
        predictions={"validation": [wrong(1, 0.5, text=EVIL, tags=[EVIL])]}, lost={EVIL: {EVIL: 0.5}},
        config={"name": EVIL, "model": EVIL},
    ))  # fmt: skip
    assert not {"script", "b"} & set(page.tags)
    assert page.facts()["text"] == page.all("h1")[0].text == EVIL
    assert page.table("Results on validation")[1] == [EVIL, "0.500", EVIL]
    assert page.table(EVIL) == [["", EVIL], [EVIL, "1"]]


def evaluations(*values: float | None) -> list[dict[str, Any]]:
    logged = [{"step": 10 * n, "split": "train", "accuracy": 0.0} for n in range(1, 4)]
    seen = [{"step": 50 * n, "split": "validation", "accuracy": value} for n, value in enumerate(values, start=1)]
    return [*logged, *seen, {"step": 999, "split": "validation", "loss": 1.0}]


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Drawn:
    monkeypatch.undo()  # with the page's own curve again
    return request.getfixturevalue("drawn")


CURVES = {2: (0.5, None, 0.7), 5: (0.4, 0.6), 7: (None,), 9: (None, 0.9), 10: (0.2, 0.3), 11: (0.1, 0.2)}


def test_the_curve_has_the_leading_metric_of_each_seed(tmp_path: Path, curves: Drawn) -> None:
    folder = write_finetuned(tmp_path, {})
    for seed, values in CURVES.items():
        write_seed(folder, seed, scores("accuracy", 0.5)[0], records=evaluations(*values))
    for seed in (10, 11):  # these are not finished
        (folder / f"seed-{seed}" / "results.json").unlink()
    page = page_of(folder)
    [(name, axes)] = curves.items()
    assert name == "accuracy"
    assert {number_of(look): points for look, points in lines(axes)} == {
        0: [(50, 0.5), (150, 0.7)], 1: [(50, 0.4), (100, 0.6)], 3: [(100, 0.9)], 4: [(50, 0.2), (100, 0.3)],
        5: [(50, 0.1), (100, 0.2)],
    }  # fmt: skip
    legend = axes.get_legend()
    assert legend is not None
    assert [label.get_text() for label in legend.get_texts()] == ["seed 2", "seed 5", "seed 9", "seed 10", "seed 11"]
    assert (axes.get_xlabel(), overlaps(axes)) == ("step", [])
    assert "During training" in headings(page)
    assert page.all("figcaption")[0].text == page.all("svg")[0]["aria-label"] == "Accuracy on validation data"


@pytest.mark.parametrize(
    ("value", "split", "values"),
    [(0.5, "validation", (0.5,)), (0.5, "test", (0.5, 0.6))],
)
def test_one_evaluation_is_no_curve(tmp_path: Path, curves: Drawn, value, split: str, values) -> None:
    page = page_of(write_finetuned(tmp_path, scores("accuracy", value, split=split), records=evaluations(*values)))
    assert (curves, "During training" in headings(page)) == ({}, False)


def test_the_model_is_compared_with_constant_answers_and_random_weights(tmp_path: Path) -> None:
    """Paired by the seeds that both have. Random weights are in a fine-tuning of the same config within the folder."""
    metrics, values = {**CONSTANT, "matthews": METRICS["matthews"]}, {0: 0.8, 1: 0.9, 3: 0.85}
    constant, other = {0: 0.5, 1: 0.55, 3: 0.5}, {0: 0.9, 1: 0.7, 3: 0.9, 4: 0.1}
    splits: dict[int, Splits] = {}
    for seed, value in values.items():
        splits[seed] = {"validation": {"accuracy": value, "constant_accuracy": constant[seed], "matthews": 0.1 * seed}}
    folder = write_finetuned(tmp_path / "out", splits, metrics=metrics)
    page = page_of(folder)
    _, row = page.table("Baselines on validation")
    assert row[:5] == ["accuracy", "the most frequent label", "0.850", "0.517", "+0.333"]
    gains = [values[seed] - constant[seed] for seed in values]
    low, high = stats.t.interval(0.95, 2, loc=np.mean(gains), scale=stats.sem(gains))
    assert row[5] == f"{low:+.3f} to {high:+.3f}"
    said = "electra-lab finetune out/finetuning.yaml --set init=random --out out/random"
    assert said in page.text
    # Random weights, for every metric that both have; another task or pre-trained weights are not a baseline.
    from_random = {seed: {"validation": {"accuracy": value, "matthews": 0.5}} for seed, value in other.items()}
    random = {"init": "random", "name": "other", "checkpoint": {"keep": 2}}
    unlike = [{"task": {"type": "other"}}, {"network": "generator"}, {"model": "runs/x"}, {"optimizer": {"type": "x"}}]
    for config, number in ((random, 2), ({}, 1), *((random | change, 1) for change in unlike)):
        write_finetuned(folder / "random", from_random, metrics=metrics, config=config, id=f"{ID}-random")
        table = page_of(folder).table("Baselines on validation")[1:]
        assert len(table) == number
        if number == 2:
            gains = [values[seed] - other[seed] for seed in values]
            low, high = stats.t.interval(0.95, 2, loc=np.mean(gains), scale=stats.sem(gains))
            assert table[1][3:] == ["0.650", f"{np.mean(gains):+.3f}", f"{low:+.3f} to {high:+.3f}"]
            assert table[1][1] == "the same from random weights"  # of metrics with baselines, not of all
        assert (said in page_of(folder).text) == (number == 1)
    # Relative paths are those of each file's folder.
    write_finetuned(
        folder, splits, metrics=metrics, config={"model": "../small", "dataset": {"type": "table", "train": "../a.tsv"}}
    )
    for model, train, number in (
        ("../../small", "../../a.tsv", 2),
        ("../small", "../../a.tsv", 1),
        ("../../small", "../b.tsv", 1),
    ):
        config = random | {"model": model, "dataset": {"type": "table", "train": train}}
        write_finetuned(folder / "random", from_random, metrics=metrics, config=config, id=f"{ID}-random")
        assert len(page_of(folder).table("Baselines on validation")[1:]) == number
    assert not [heading for heading in headings(page_of(write_finetuned(tmp_path / "none", ONE))) if "Base" in heading]


def test_a_tagged_sentence_is_shown_word_by_word(tmp_path: Path) -> None:
    words, tags, right = ["Ada", EVIL, "in", "Rome"], ["O", "O", "O", "B-LOC"], ["B-PER", "O", "O", "B-LOC"]
    tagged = {"id": "s", "words": words, "prediction": tags, "certainty": 0.5, "label": right, "correct": False}
    page = page_of(write_finetuned(tmp_path / "tagged", ONE, predictions={"validation": [RIGHT, tagged]}))
    [sentence] = [paragraph for paragraph in page.all("p") if paragraph["class"] == "text"]
    assert sentence.text.split() == ["Ada", "O", "instead", "of", "B-PER", *EVIL.split(), "in", "Rome", "B-LOC"]
    assert [span.text.split()[0] for span in sentence.all("span") if span["class"] == "replaced"] == ["Ada"]
    assert {"words", "prediction", "label"}.isdisjoint(page.facts())
    assert page.facts()["certainty"] == "0.500"
    # Predictions that are no tags of its words are fields.
    odd = {**tagged, "prediction": ["O"]}
    assert "words" in page_of(write_finetuned(tmp_path / "odd", ONE, predictions={"validation": [odd]})).facts()
