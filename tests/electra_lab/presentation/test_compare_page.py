"""The page of a comparison has the tables of the terminal, a chart per metric and axis, and no significance tests."""

import json
from pathlib import Path

import numpy as np
import pytest

from electra_lab.analysis.run_comparison import subjects
from electra_lab.presentation import compare_page, pages
from electra_lab.presentation.compare_page import Comparison, Measured, page, text
from electra_lab.storage.run_directory import RunDirectory
from registry import Metric
from registry.errors import guide
from tests.electra_lab.analysis.test_run_comparison import change, write
from tests.electra_lab.presentation.axes import Drawn
from tests.pages import Page

HOSTILE = "<script>alert('&')</script>"
TEXT = "the old man sat on the mat and saw it"


def compared(folder: Path, **config: object) -> Comparison:
    paths = write(folder, "one", "other", "third")
    change(paths[1], generator={"scale": 0.25}, note=HOSTILE, **config)
    for number, path in enumerate(paths):
        row = [{"token": w, "original": w, "replaced": False, "probability": 0.1 * number} for w in TEXT.split()]
        row[2 + number] |= {"token": "cat", "replaced": True}
        (path / "examples.json").write_text(json.dumps([row]))
    return Comparison(subjects(paths))


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_page, "_overlay", lambda found, *words: pages.Chart("", "<svg></svg>"))


def test_the_page_has_every_table_and_loads_nothing(tmp_path: Path, plain: None) -> None:
    found = compared(tmp_path)
    shown = Page(page(found))
    for table in found.tables():
        if table.rows:
            assert shown.table(table.title)[1:] == [[*row] for row in table.rows], table.title
    costs = {name: numbers for name, *numbers in shown.table("Costs")}
    assert costs["FLOPs"] == ["1.00e+12", "2.00e+12", "3.00e+12"]
    assert costs["tokens"] == ["819,200", "737,280", "655,360"]
    assert HOSTILE not in shown.source
    assert HOSTILE in shown.text
    assert not {"script", "link", "img"} & {*shown.tags}
    assert all(value.startswith("#") for name, value in shown.attributes if name == "src")
    links = [value for name, value in shown.attributes if name == "href" and not value.startswith("#")]
    assert links, "addresses of guides are links"
    assert {*links} == {guide("ablations")}


def test_a_metric_on_an_own_task_is_marked(tmp_path: Path) -> None:
    found = compared(tmp_path / "same")
    for subject in found.subjects:  # with those of the own task first
        vars(subject)["metrics"] = dict(sorted(subject.metrics.items(), key=lambda item: item[1].comparable))
    flags = [metric.comparable for metric in found.metrics().values()]
    assert flags == sorted(flags, reverse=True) != sorted(flags), "those that compare the runs come first"
    results = found.tables()[-2]
    readings = {row[0]: row[-1] for row in results.rows}
    assert readings["generator loss"] == "lower is better"
    assert readings["discriminator AUC"].startswith("not comparable")
    last = RunDirectory(tmp_path / "same" / "cells" / "third").records()[-1]
    [row] = [row for row in results.rows if row[0] == "discriminator AUC"]
    assert float(row[3]) == pytest.approx(last["discriminator_auc"], abs=1e-4)
    other = compared(tmp_path / "other", masking={"mask_prob": 0.4})
    assert {row[-1].partition(" (")[0] for row in other.tables()[-2].rows[2:]} == {"not comparable"}
    assert "masking.mask_prob" in other.not_comparable
    assert other.as_dict()["comparable"] == []


def test_curves_lie_over_each_other_by_step_tokens_and_flops(tmp_path: Path, drawn: Drawn) -> None:
    found = compared(tmp_path)
    page(found)
    cells = [RunDirectory(subject.directory.path).records() for subject in found.subjects]
    for axis, unit in {"step": 1, "tokens": 2048}.items():
        axes = drawn[f"generator_loss-{axis}"]
        assert len(axes.lines) == 3
        for line, records in zip(axes.lines, cells, strict=True):
            points = [(r["step"] * unit, r["generator_loss"]) for r in records if r["split"] == "validation"]
            assert np.allclose(line.get_xydata(), points)
    axes = drawn["generator_loss-flops"]
    assert [line.get_xdata()[-1] for line in axes.lines] == pytest.approx([1e12, 2e12, 3e12])
    assert len({(line.get_color(), line.get_marker()) for line in axes.lines}) == 3


def test_test_rows_stand_below_each_other(tmp_path: Path, plain: None) -> None:
    found = compared(tmp_path)
    marked = [node.text.split() for node in Page(page(found)).all("span") if node["class"] == "replaced"]
    assert marked == [["man", "cat"], ["sat", "cat"], ["on", "cat"]]
    (found.subjects[1].directory.path / "examples.json").unlink()
    assert not [node for node in Page(page(Comparison(found.subjects))).all("span") if node["class"] == "replaced"]


def test_runs_without_records_and_examples_have_a_page(tmp_path: Path, plain: None) -> None:
    paths = write(tmp_path, "one", "other")
    for path in paths:
        (path / "metrics.jsonl").unlink()
    found = Comparison(subjects(paths))
    assert all((Page(page(found)).text, text(found), json.dumps(found.as_dict())))


def test_the_terminal_has_tables_and_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_page, "verdicts", lambda *_: ["It learned."])
    lines = text(compared(tmp_path)).splitlines()
    assert ["generator.scale", "0.5", "0.25", "0.5"] in [line.split() for line in lines]
    assert "other: It learned." in lines


def test_baselines_of_a_measure_need_no_training(tmp_path: Path) -> None:
    metrics = {"auc": Metric(baselines=("chance",)), "chance": Metric()}
    found = compared(tmp_path)
    numbers = {label: {"auc": 0.7, "chance": 0.5} for label in found.labels}
    measured = Comparison(found.subjects, Measured("fixed", metrics, numbers))
    table = measured.tables()[2]
    assert [row[0] for row in table.rows] == ["auc", "chance"]
    assert table.rows[0][-1] != table.rows[1][-1]
    assert [run["on"] for run in measured.as_dict()["runs"]] == [*numbers.values()]
