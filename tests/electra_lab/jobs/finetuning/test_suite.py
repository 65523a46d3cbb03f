"""Several models on several tasks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from electra_lab.analysis.statistics import difference
from electra_lab.config.load import dump
from electra_lab.jobs.finetuning import suite
from electra_lab.jobs.finetuning.suite import resume_suite, run_suite
from electra_lab.storage.finetuning_folder import FinetuningFolder, SuiteFolder
from registry.errors import (
    CellsFailed,
    CheckpointError,
    ConfigError,
    DataError,
    DivergedError,
    Interrupted,
    OutOfMemoryError,
    Preempted,
)
from tests.electra_lab.jobs.finetuning.small import write_finetuning
from tests.electra_lab.presentation.finetuned import leave_out_curve, write_seed

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
        ({"set": {"evaluate.metric": "acuracy"}}, "text_classification has no metric 'acuracy'. Did you mean"),
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


# Without training: what a suite does with the outcome of each fine-tuning


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, list[int]]]:
    """Let a fine-tuning be finished at once; returns model, task and seeds of each that a suite has begun."""
    found: list[tuple[str, str, list[int]]] = []

    def advance(folder: FinetuningFolder, loaded: Any, device: Any) -> None:
        config = loaded.config
        folder.write("finetuning.yaml", dump(config))
        left = [seed for seed in config.seeds if folder.results(seed) is None]
        found.append((folder.path.parent.name, config.name, left))
        for seed in left:
            write_seed(folder.path, seed, {"validation": {"accuracy": 0.5, "matthews": 0.25}})

    monkeypatch.setattr(suite, "advance", advance)
    leave_out_curve(monkeypatch)
    return found


EVERY = [(model, task, [0, 1]) for task in ("first", "second") for model in ("ours", "from nothing")]


def failing(monkeypatch: pytest.MonkeyPatch, model: str, error: Exception) -> None:
    """Let every fine-tuning of a model fail."""
    advance = suite.advance

    def failed(folder: FinetuningFolder, loaded: Any, device: Any) -> None:
        if folder.path.parent.name == model:
            raise error
        advance(folder, loaded, device)

    monkeypatch.setattr(suite, "advance", failed)


def test_a_suite_leaves_its_files_and_its_plan(tmp_path: Path, begun: list[Any]) -> None:
    """Each task is compared by the metric that its file leads with."""
    path = write_suite(tmp_path, tmp_path)
    folder = SuiteFolder(run_suite(path, tmp_path / "out", "cpu"))
    assert begun == EVERY
    plan = folder.plan()
    assert (plan.models, plan.tasks) == (["ours", "from nothing"], {"first": "accuracy", "second": "matthews"})
    assert (plan.gaps, plan.failures) == ({}, {})
    assert (folder.path / "source.yaml").read_text() == path.read_text()
    assert yaml.safe_load((folder.path / "suite.yaml").read_text())["name"] == "two"


def test_changes_hold_for_every_task_and_models_replace_those_of_the_files(tmp_path: Path, begun: list[Any]) -> None:
    sections = {"set": {"train.epochs": 2, "init": "random", "seeds": [7]}, "seeds": None}
    folder = SuiteFolder(run_suite(write_suite(tmp_path, tmp_path, **sections), tmp_path / "out", "cpu"))
    configs = {pair[:2]: yaml.safe_load((folder.place(*pair[:2]) / "finetuning.yaml").read_text()) for pair in EVERY}
    assert {each["train"]["epochs"] for each in configs.values()} == {2}
    assert {each["train"]["batch_size"] for each in configs.values()} == {6}
    assert [configs[model, "first"]["init"] for model in ("ours", "from nothing")] == ["pretrained", "random"]
    assert [pair[2] for pair in begun] == [[7]] * 4


def test_seeds_of_the_files_hold_unless_the_suite_has_its_own(tmp_path: Path, begun: list[Any]) -> None:
    path = write_suite(tmp_path, tmp_path, seeds=None)
    write_finetuning(tmp_path, tmp_path, name="second", **QUICK, evaluate={"metric": "matthews"}, seeds=[3, 4])
    run_suite(path, tmp_path / "out", "cpu")
    assert [pair[2] for pair in begun] == [[0], [0], [3, 4], [3, 4]]


def test_a_task_without_training_takes_one_seed_unless_weights_are_random(tmp_path: Path, begun: list[Any]) -> None:
    pairs = {"task": {"type": "minimal_pairs"}, "dataset": {"type": "line_pairs", "folder": "texts"}}
    write_finetuning(tmp_path, tmp_path, name="grammar", **pairs, train=None, evaluate=None, checkpoint=None)
    path = write_suite(tmp_path, tmp_path, tasks=["grammar.yaml", "first.yaml"], seeds=[3, 4])
    run_suite(path, tmp_path / "out", "cpu")
    assert [pair[2] for pair in begun] == [[3], [3, 4], [3, 4], [3, 4]]


def test_a_pair_is_not_taken_from_another_process(tmp_path: Path, begun: list[Any]) -> None:
    folder = SuiteFolder(run_suite(write_suite(tmp_path, tmp_path), tmp_path / "out", "cpu"))
    with FinetuningFolder(folder.place("ours", "first")).locked(), pytest.raises(CellsFailed):
        resume_suite(folder.path, "cpu")
    assert "is in use" in folder.plan().failures["ours on first"]
    assert folder.plan().failures.keys() == {"ours on first"}


def test_a_task_without_data_is_not_begun(tmp_path: Path, begun: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    path = write_suite(tmp_path, tmp_path)
    write_finetuning(tmp_path, tmp_path, name="first", **QUICK, dataset={"type": "lines", "folder": "elsewhere"})
    folder = SuiteFolder(run_suite(path, tmp_path / "out", "cpu"))
    assert begun == EVERY[2:]
    assert list(folder.plan().gaps) == ["first"]
    assert list(folder.plan().tasks) == ["first", "second"]
    assert not folder.place("ours", "first").exists()
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("first: left out: ")]
    assert len(said) == 2, "once while it runs, once below the table"
    (tmp_path / "elsewhere").mkdir()
    shutil.copytree(tmp_path / "texts", tmp_path / "elsewhere", dirs_exist_ok=True)
    resume_suite(folder.path, "cpu")
    assert begun[2:4] == EVERY[:2]
    assert folder.plan().gaps == {}


def test_data_that_went_away_is_missed_by_what_is_not_finished_alone(tmp_path: Path, begun: list[Any]) -> None:
    folder = SuiteFolder(run_suite(write_suite(tmp_path, tmp_path), tmp_path / "out", "cpu"))
    shutil.rmtree(folder.place("from nothing", "second") / "seed-1")
    (tmp_path / "texts").rename(tmp_path / "away")
    begun.clear()
    resume_suite(folder.path, "cpu")
    assert begun == [(model, task, []) for model, task, _ in EVERY[:3]]
    assert list(folder.plan().gaps) == ["second"]
    assert folder.values("from nothing", "second", "matthews") == {0: 0.25}


@pytest.mark.parametrize("error", [DivergedError, DataError, ConfigError, CheckpointError, OutOfMemoryError])
def test_what_fails_is_named_and_stops_no_other(
    tmp_path: Path, begun: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Any
) -> None:
    """A model that is not here fails for itself: the others are fine-tuned for the task."""
    with monkeypatch.context() as patched:
        failing(patched, "ours", error("does not exist"))
        with pytest.raises(CellsFailed) as caught:
            run_suite(write_suite(tmp_path, tmp_path), tmp_path / "out", "cpu")
    assert str(caught.value) == "2 of the fine-tunings failed: ours on first; ours on second."
    folder = SuiteFolder(tmp_path / "out")
    assert begun == [EVERY[1], EVERY[3]]
    assert folder.plan().failures == {f"ours on {task}": "does not exist" for task in ("first", "second")}
    assert folder.plan().gaps == {}
    assert capsys.readouterr().err.count("ours on second: failed: does not exist") == 2
    assert (folder.path / "report.html").is_file()
    resume_suite(folder.path, "cpu")
    assert begun[2:] == [EVERY[0], ("from nothing", "first", []), EVERY[2], ("from nothing", "second", [])]
    assert folder.plan().failures == {}


def test_a_model_that_is_not_here_is_no_gap_of_the_task(tmp_path: Path, model: Path) -> None:
    """The real thing."""
    models = {"lost": {"model": "no/such/folder"}, "ours": {"model": str(model)}}
    path = write_suite(tmp_path, model, models=models, tasks=["first.yaml"], seeds=[0])
    with pytest.raises(CellsFailed, match=r"^1 of the fine-tunings failed: lost on first\.$"):
        run_suite(path, tmp_path / "out", "cpu")
    folder = SuiteFolder(tmp_path / "out")
    assert "no/such/folder: does not exist" in folder.plan().failures["lost on first"]
    assert folder.plan().gaps == {}
    assert set(folder.values("ours", "first", "accuracy")) == {0}


@pytest.mark.parametrize("kind", [Interrupted, Preempted])
def test_an_interruption_ends_the_suite_and_names_it(
    tmp_path: Path, begun: list[Any], monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    place = tmp_path / "out" / "ours" / "first"
    failing(monkeypatch, "ours", kind(f"stopped and saved after step 7. Resume with: electra-lab resume {place}"))
    with pytest.raises(kind) as caught:
        run_suite(write_suite(tmp_path, tmp_path), tmp_path / "out", "cpu")
    said = f"stopped and saved after step 7. Resume with: electra-lab resume {tmp_path / 'out'}"
    assert str(caught.value) == said
    assert begun == []
    assert not (tmp_path / "out" / "plan.json").exists()


def test_damage_stops_a_suite(tmp_path: Path, begun: list[Any]) -> None:
    folder = SuiteFolder(run_suite(write_suite(tmp_path, tmp_path), tmp_path / "out", "cpu"))
    file = folder.place("ours", "first") / "seed-0" / "results.json"
    file.write_text("{}")
    with pytest.raises(CheckpointError, match="Delete it and resume"):
        resume_suite(folder.path, "cpu")


def test_a_suite_is_not_written_over_another(tmp_path: Path, begun: list[Any]) -> None:
    path = write_suite(tmp_path, tmp_path)
    run_suite(path, tmp_path / "out", "cpu")
    with pytest.raises(ConfigError, match="exists and is not empty"):
        run_suite(path, tmp_path / "out", "cpu")
    folder = SuiteFolder(tmp_path / "out")
    with folder.locked(), pytest.raises(ConfigError, match="is in use"):
        resume_suite(folder.path, "cpu")
