"""The page of a fine-tuning: its tables, its wrong predictions and its curve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from electra_lab.presentation import charts
from tests.electra_lab.presentation.axes import lines, number_of, overlaps
from tests.electra_lab.presentation.finetuned import scores, write_finetuned, write_seed
from tests.electra_lab.presentation.test_finetuning_page import headings, page_of
from tests.pages import Page

EVIL = '<script>alert("x")</script> & <b>'
ONE = {0: {"validation": {"accuracy": 0.5}}}
BOTH = {0: {"validation": {"accuracy": 0.5}, "test": {"accuracy": 0.6}}}


pytestmark = pytest.mark.usefixtures("no_curve")


def test_tables_show_their_numbers(tmp_path: Path) -> None:
    rows = [["cat", 12, 0.123456], ["dogs", 3, 1.0]]
    table = {"title": "Labels (rows)", "header": ["", "cat", "share"], "rows": rows}
    other = {"title": "Fields", "header": ["field", "accuracy"], "rows": [["syntax", 0.5]]}
    page = page_of(write_finetuned(tmp_path / "out", BOTH, tables={"validation": [table], "test": [other]}))
    assert page.table("Labels (rows)") == [["", "cat", "share"], ["cat", "12", "0.123"], ["dogs", "3", "1.000"]]
    assert page.table("Fields")[1] == ["syntax", "0.500"]
    assert headings(page)[2:4] == ["Labels (rows)", "Fields"]
    assert [each.text for each in page.all("p")[1:]] == ["On validation, seed 0.", "On test, seed 0."]
    assert [cell["class"] for cell in page.all("td") if cell.text in ("12", "0.123")] == ["number", "number"]


def wrong(number: int, certainty: float, **fields: Any) -> dict[str, Any]:
    return {"id": f"w{number}", **fields, "prediction": "a", "label": "b", "certainty": certainty, "correct": False}


def shown_errors(page: Page) -> list[list[tuple[str, str]]]:
    lists = [each for each in page.all("dl") if "id" in [term.text for term in each.all("dt")]]
    return [[(t.text, d.text) for t, d in zip(each.all("dt"), each.all("dd"), strict=True)] for each in lists]


def test_wrong_predictions_are_shown_the_most_certain_first(tmp_path: Path) -> None:
    right = {"id": "r", "prediction": "a", "label": "a", "certainty": 0.99, "correct": True}
    given = [wrong(1, 0.6), right, wrong(2, 0.9), wrong(3, 0.7), {"id": "u", "prediction": "a", "correct": None}]
    config = {"evaluate": {"select": "last", "errors": 2}}
    predictions = {"validation": [right], "test": given}
    page = page_of(write_finetuned(tmp_path / "out", BOTH, predictions=predictions, config=config))
    assert shown_errors(page) == [
        [("id", f"w{number}"), ("prediction", "a"), ("label", "b"), ("certainty", f"{certainty:.3f}")]
        for number, certainty in ((2, 0.9), (3, 0.7))
    ]
    assert "On test, seed 0, the most certain first." in page.text


def test_wrong_predictions_without_certainty_keep_their_order(tmp_path: Path) -> None:
    given = [{"id": name, "correct": False} for name in "bac"]
    page = page_of(write_finetuned(tmp_path / "out", ONE, predictions={"validation": given}))
    assert [each[0][1] for each in shown_errors(page)] == ["b", "a", "c"]


@pytest.mark.parametrize("errors", [0, 10])
def test_without_errors_there_is_no_heading(tmp_path: Path, errors: int) -> None:
    given = [wrong(1, 0.5)] if errors == 0 else [{"id": "1", "prediction": 3.5, "label": 2.0}]
    config = {"evaluate": {"select": "last", "errors": errors}}
    page = page_of(write_finetuned(tmp_path / "out", ONE, predictions={"validation": given}, config=config))
    assert headings(page) == ["Results on validation", "Config"]


def test_fields_are_cut_and_written_as_they_are(tmp_path: Path) -> None:
    fields = {
        "text": "é" * 401,
        "short": "é" * 400,
        "tags": ["Größe", "日本"],
        "score": 2 / 3,
        "count": 7,
        "none": None,
        "lines": "one\u2028two\x85three",
    }
    page = page_of(write_finetuned(tmp_path / "out", ONE, predictions={"validation": [wrong(1, 0.5, **fields)]}))
    facts = page.facts()
    assert facts["text"] == "é" * 400 + "…"
    assert facts["short"] == "é" * 400
    assert facts["tags"] == '["Größe", "日本"]'
    assert facts["lines"] == "one\u2028two\x85three"
    assert (facts["score"], facts["count"], facts["none"]) == ("0.667", "7", "null")


def test_nothing_of_the_data_becomes_part_of_the_page(tmp_path: Path) -> None:
    table = {"title": EVIL, "header": ["", EVIL], "rows": [[EVIL, 1]]}
    folder = write_finetuned(
        tmp_path / "out",
        {0: {"validation": {EVIL: 0.5}, EVIL.replace("/", ""): {}}},
        metrics={EVIL: {"title": EVIL, "summary": EVIL}},
        tables={"validation": [table]},
        predictions={"validation": [wrong(1, 0.5, text=EVIL, tags=[EVIL])]},
        lost={EVIL: {EVIL: 0.5}},
        config={"name": EVIL, "model": EVIL},
        platform=EVIL,
    )
    page = page_of(folder)
    assert not {"script", "b"} & set(page.tags)
    assert page.facts()["text"] == EVIL
    assert page.all("h1")[0].text == EVIL
    assert page.table("Results on validation")[1] == [EVIL, "0.500", EVIL]
    assert page.table(EVIL) == [["", EVIL], [EVIL, "1"]]


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Axes, str]]:
    """The axes of each picture and what it says, by its name; with the page's own curve again."""
    found: dict[str, tuple[Axes, str]] = {}

    def keep(figure: Figure, name: str, says: str) -> str:
        [axes] = figure.axes
        found[name] = axes, says
        return "<svg></svg>"

    monkeypatch.undo()
    monkeypatch.setattr(charts, "svg", keep)
    return found


def evaluations(*values: float | None) -> list[dict[str, Any]]:
    logged = [{"step": 10 * n, "split": "train", "accuracy": 0.0} for n in range(1, 4)]
    seen = [{"step": 50 * n, "split": "validation", "accuracy": value} for n, value in enumerate(values, start=1)]
    return [*logged, *seen, {"step": 999, "split": "validation", "loss": 1.0}]


def test_the_curve_has_the_leading_metric_of_each_seed(tmp_path: Path, curves: dict[str, tuple[Axes, str]]) -> None:
    folder = write_finetuned(tmp_path / "out", {})
    for seed, values in {
        2: (0.5, None, 0.7),
        5: (0.4, 0.6),
        7: (None,),
        9: (None, 0.9),
        10: (0.2, 0.3),
        11: (0.1, 0.2),
    }.items():
        write_seed(folder, seed, scores("accuracy", 0.5)[0], records=evaluations(*values))
    page = page_of(folder)
    [(name, (axes, says))] = curves.items()
    assert (name, says) == ("accuracy", "Accuracy on validation data")
    drawn = {number_of(look): points for look, points in lines(axes)}
    assert drawn == {0: [(50, 0.5), (150, 0.7)], 1: [(50, 0.4), (100, 0.6)], 3: [(100, 0.9)],
                     4: [(50, 0.2), (100, 0.3)], 5: [(50, 0.1), (100, 0.2)]}  # fmt: skip
    legend = axes.get_legend()
    assert legend is not None
    assert [each.get_text() for each in legend.get_texts()] == ["seed 2", "seed 5", "seed 9", "seed 10", "seed 11"]
    assert axes.get_xlabel() == "step"
    assert "During training" in headings(page)
    assert overlaps(axes) == []
    assert page.all("figcaption")[0].text == "Accuracy on validation data"


@pytest.mark.parametrize("case", ["one evaluation", "no numbers", "no validation"])
def test_one_evaluation_is_no_curve(tmp_path: Path, curves: dict[str, tuple[Axes, str]], case: str) -> None:
    value = None if case == "no numbers" else 0.5
    split = "test" if case == "no validation" else "validation"
    records = evaluations(0.5) if case == "one evaluation" else evaluations(0.5, 0.6)
    page = page_of(write_finetuned(tmp_path / "out", scores("accuracy", value, split=split), records=records))
    assert not curves
    assert "During training" not in headings(page)
