"""Several models on several tasks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from electra_lab.finetuning import suite
from electra_lab.finetuning.suite import resume_suite, run_suite
from electra_lab.reports.statistics import difference
from electra_lab.storage.finetuning_folder import FinetuningFolder, SuiteFolder
from registry.errors import CellsFailed, ConfigError, DivergedError
from tests.electra_lab.finetuning.small import write_finetuning

QUICK = {"train": {"epochs": 1, "batch_size": 6, "learning_rate": 3e-3, "precision": "fp32"}}


def write_suite(folder: Path, model: Path, **sections: Any) -> Path:
    write_finetuning(folder, model, name="first", **QUICK)
    write_finetuning(folder, model, name="second", **QUICK, evaluate={"metric": "matthews"})
    values = {
        "name": "two",
        "models": {"ours": {"model": str(model)}, "from nothing": {"model": str(model), "init": "random"}},
        "tasks": ["first.yaml", "second.yaml"],
        "seeds": [0, 1],
        **sections,
    }
    path = folder / "two.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path


def test_every_model_is_fine_tuned_for_every_task(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = SuiteFolder(run_suite(write_suite(tmp_path, model), tmp_path / "out", "cpu"))
    values = {
        (label, task): folder.values(label, task, metric)
        for label in ("ours", "from nothing")
        for task, metric in (("first", "accuracy"), ("second", "matthews"))
    }
    assert all(set(each) == {0, 1} for each in values.values())
    config = yaml.safe_load((folder.place("from nothing", "first") / "finetuning.yaml").read_text())
    assert (config["init"], config["seeds"]) == ("random", [0, 1])
    assert json.loads((folder.path / "results.json").read_text())["ours"]["first"] == {
        str(seed): value for seed, value in values["ours", "first"].items()
    }
    said = capsys.readouterr().err
    medians = [100 * sum(values["ours", task].values()) / 2 for task in ("first", "second")]
    shown = next(line for line in said.splitlines() if line.startswith("ours  "))
    assert shown.split()[1:] == [f"{each:.1f}" for each in (*medians, sum(medians) / 2)]
    expected = difference(values["from nothing", "first"], values["ours", "first"])
    assert expected.mean is not None
    assert f"from nothing - ours on first: {100 * expected.mean:+.1f}" in said
    page = (folder.path / "report.html").read_text()
    assert page.count("<th>") + page.count('<th class="number">') >= 8
    assert f"{medians[0]:.1f}" in page


def test_a_task_without_data_is_a_gap_and_no_average(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_suite(tmp_path, model)
    write_finetuning(tmp_path, model, name="second", **QUICK, dataset={"type": "lines", "folder": "elsewhere"})
    folder = SuiteFolder(run_suite(path, tmp_path / "out", "cpu"))
    plan = folder.plan()
    assert list(plan.gaps) == ["second"]
    assert "elsewhere: has no .txt files." in plan.gaps["second"]
    shown = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("ours  "))
    assert shown.split()[2:] == ["-", "-"]


def test_a_fine_tuning_that_fails_stops_no_other(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = suite.advance

    def diverging(folder: FinetuningFolder, loaded: Any, device: Any) -> None:
        if loaded.config.init == "random" and loaded.config.name == "first":
            raise DivergedError("the loss was not finite")
        advance(folder, loaded, device)

    monkeypatch.setattr(suite, "advance", diverging)
    with pytest.raises(CellsFailed, match=r"1 of the fine-tunings failed: from nothing on first\."):
        run_suite(write_suite(tmp_path, model), tmp_path / "out", "cpu")
    folder = SuiteFolder(tmp_path / "out")
    assert folder.plan().failures == {"from nothing on first": "the loss was not finite"}
    assert set(folder.values("from nothing", "second", "matthews")) == {0, 1}
    assert "the loss was not finite" in (folder.path / "report.html").read_text()


def test_a_resumed_suite_runs_what_is_missing_alone(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SuiteFolder(run_suite(write_suite(tmp_path, model), tmp_path / "out", "cpu"))
    before = folder.path.joinpath("results.json").read_text()
    shutil.rmtree(folder.place("from nothing", "second") / "seed-1")
    times = {file: file.stat().st_mtime_ns for file in folder.path.rglob("seed-*/results.json")}
    assert len(times) == 7
    resume_suite(folder.path, "cpu")
    assert {file: file.stat().st_mtime_ns for file in times} == times
    assert folder.path.joinpath("results.json").read_text() == before


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"models": {}}, "models: is empty"),
        ({"models": {"a/b": {"model": "x"}}}, "models.a/b"),
        ({"tasks": ["third.yaml"]}, "tasks.0: "),
        ({"tasks": ["first.yaml", "copy.yaml"]}, "has the name 'first' too"),
        ({"set": {"train.epoch": 2}}, "train.epoch: unknown parameter. Did you mean 'epochs'?"),
        ({"seeds": [1, 1]}, "1 appears twice"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_line(
    tmp_path: Path, model: Path, sections: dict[str, Any], reason: str
) -> None:
    path = write_suite(tmp_path, model, **sections)
    shutil.copy(tmp_path / "first.yaml", tmp_path / "copy.yaml")
    with pytest.raises(ConfigError) as caught:
        run_suite(path, tmp_path / "out", "cpu")
    assert str(caught.value).startswith(f"{path}:")
    assert reason in str(caught.value)
    assert not (tmp_path / "out").exists()
