"""The page of a fine-tuning: its tables, its wrong predictions and its curve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.electra_lab.presentation.axes import Drawn, lines, number_of, overlaps
from tests.electra_lab.presentation.finetuned import scores, write_finetuned, write_seed
from tests.electra_lab.presentation.test_finetuning_page import headings, page_of

EVIL = '<script>alert("x")</script> & <b>'
ONE = {0: {"validation": {"accuracy": 0.5}}}
BOTH = {0: {"validation": {"accuracy": 0.5}, "test": {"accuracy": 0.6}}}


def test_tables_show_their_numbers(tmp_path: Path, no_curve: None) -> None:
    rows = [["cat", 12, 0.123456], ["dogs", 3, 1.0]]
    table = {"title": "Labels (rows)", "header": ["", "cat", "share"], "rows": rows}
    other = {"title": "Fields", "header": ["field", "accuracy"], "rows": [["syntax", 0.5]]}
    page = page_of(write_finetuned(tmp_path, BOTH, tables={"validation": [table], "test": [other]}))
    assert page.table("Labels (rows)") == [["", "cat", "share"], ["cat", "12", "0.123"], ["dogs", "3", "1.000"]]
    assert page.table("Fields")[1] == ["syntax", "0.500"]
    assert headings(page)[2:4] == ["Labels (rows)", "Fields"]
    assert [each.text for each in page.all("p")[1:]] == ["On validation, seed 0.", "On test, seed 0."]
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
def test_wrong_predictions_are_shown_the_most_certain_first(tmp_path, no_curve, given, errors: int, shown) -> None:
    """Without certainty they keep their order; without errors there is no heading."""
    config = {"evaluate": {"select": "last", "errors": errors}}
    page = page_of(write_finetuned(tmp_path, BOTH, predictions={"validation": [RIGHT], "test": given}, config=config))
    errors_ = [each for each in page.all("dl") if each.all("dt")[0].text == "id"]
    assert [each.all("dd")[0].text for each in errors_] == shown
    assert ("On test, seed 0, the most certain first." in page.text) == bool(shown)
    assert (headings(page) == ["Results on validation", "Results on test", "Config"]) == (not shown)


def test_fields_are_cut_and_written_as_they_are(tmp_path: Path, no_curve: None) -> None:
    lines = "one\u2028two\x85three"
    fields = {
        "text": "é" * 401,
        "short": "é" * 400,
        "tags": ["Größe", "日本"],
        "score": 2 / 3,
        "count": 7,
        "none": None,
    }
    wrongs = {"validation": [wrong(1, 0.5, **fields, lines=lines)]}
    facts = page_of(write_finetuned(tmp_path, ONE, predictions=wrongs)).facts()
    assert {name: facts[name] for name in ("id", *fields, "lines", "prediction", "label", "certainty")} == {
        "id": "w1", "text": "é" * 400 + "…", "short": "é" * 400, "tags": '["Größe", "日本"]', "score": "0.667",
        "count": "7", "none": "null", "lines": lines, "prediction": "a", "label": "b", "certainty": "0.500",
    }  # fmt: skip


def test_nothing_of_the_data_becomes_part_of_the_page(tmp_path: Path, no_curve: None) -> None:
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


CURVES = {2: (0.5, None, 0.7), 5: (0.4, 0.6), 7: (None,), 9: (None, 0.9), 10: (0.2, 0.3), 11: (0.1, 0.2)}


def test_the_curve_has_the_leading_metric_of_each_seed(tmp_path: Path, drawn: Drawn) -> None:
    folder = write_finetuned(tmp_path, {})
    for seed, values in CURVES.items():
        write_seed(folder, seed, scores("accuracy", 0.5)[0], records=evaluations(*values))
    page = page_of(folder)
    [(name, axes)] = drawn.items()
    assert name == "accuracy"
    assert {number_of(look): points for look, points in lines(axes)} == {
        0: [(50, 0.5), (150, 0.7)], 1: [(50, 0.4), (100, 0.6)], 3: [(100, 0.9)], 4: [(50, 0.2), (100, 0.3)],
        5: [(50, 0.1), (100, 0.2)],
    }  # fmt: skip
    legend = axes.get_legend()
    assert legend is not None
    assert [each.get_text() for each in legend.get_texts()] == ["seed 2", "seed 5", "seed 9", "seed 10", "seed 11"]
    assert (axes.get_xlabel(), overlaps(axes)) == ("step", [])
    assert "During training" in headings(page)
    assert page.all("figcaption")[0].text == page.all("svg")[0]["aria-label"] == "Accuracy on validation data"


@pytest.mark.parametrize(
    ("value", "split", "values"),
    [(0.5, "validation", (0.5,)), (None, "validation", (0.5, 0.6)), (0.5, "test", (0.5, 0.6))],
)
def test_one_evaluation_is_no_curve(tmp_path: Path, drawn: Drawn, value, split: str, values) -> None:
    page = page_of(write_finetuned(tmp_path, scores("accuracy", value, split=split), records=evaluations(*values)))
    assert (drawn, "During training" in headings(page)) == ({}, False)
