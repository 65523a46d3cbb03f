"""Ablations of fine-tunings: several models on several tasks, one table."""

from __future__ import annotations

import csv
import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from electra_lab.analysis.results import AVERAGE, read
from electra_lab.jobs.sweeps import cells, run
from electra_lab.jobs.sweeps.cells import quarantine_damaged
from electra_lab.jobs.sweeps.file import Ablation, load_ablation
from electra_lab.storage.ablation_folder import AblationFolder
from electra_lab.storage.finetuning_folder import FinetuningFolder
from registry.errors import CellsFailed, ConfigError, DataError, DivergedError
from tests.electra_lab.jobs.finetuning.small import write_finetuning
from tests.electra_lab.jobs.sweeps.small import ablate, stamps
from tests.electra_lab.presentation.finetuned import leave_out_curve, write_seed
from tests.pages import Page

QUICK = {"train": {"epochs": 1, "batch_size": 6, "learning_rate": 3e-3, "precision": "fp32"}}
GRAMMAR: dict[str, Any] = {
    "task": {"type": "minimal_pairs"}, "dataset": {"type": "line_pairs", "folder": "texts"},
    "train": None, "evaluate": None, "checkpoint": None,
}  # fmt: skip
SCORES = {"ours": {"first": [0.5, 0.7], "second": [0.2, 0.4]}, "random": {"first": [0.4, 0.5], "second": [0.1, 0.1]}}


def write(folder: Path, model: Path, **sections: Any) -> Path:
    """Write an ablation of two fine-tunings; `sections` replace keys, None removes one."""
    write_finetuning(folder, model, name="first", **QUICK)
    write_finetuning(folder, model, name="second", **QUICK, evaluate={"metric": "matthews"})
    values = {
        "name": "two",
        "base": ["first.yaml", "second.yaml"],
        "vary": {"ours": {}, "random": {"init": "random"}},
        "seeds": [0, 1],
        "launcher": {"type": "in_process"},
        **sections,
    }
    path = folder / "two.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in values.items() if value}, sort_keys=False))
    return path


def configs(ablation: Ablation) -> dict[tuple[str, str, int], Any]:
    return {(cell.variant, cell.task, cell.seed): ablation.loaded[cell.id].config for cell in ablation.cells}


def test_every_variant_is_fine_tuned_for_every_task_with_every_seed(tmp_path: Path, model: Path, capfd) -> None:
    file = write(tmp_path, model)
    out = ablate(file, tmp_path / "out")
    results = read(out)
    assert results.plan.tasks == ["first", "second"]
    for cell, metric in zip(results.cells, ["accuracy", "accuracy", "matthews", "matthews"] * 2, strict=True):
        own = FinetuningFolder(out / "cells" / cell.plan.id)
        assert {cell.plan.seed: cell.metrics[cell.plan.task]} == own.judged_by(metric)
        config = yaml.safe_load((own.path / "finetuning.yaml").read_text())
        init = "random" if cell.plan.variant == "random" else "pretrained"
        assert (config["init"], config["seeds"], cell.costs.steps) == (init, [cell.plan.seed], 4)
    # The baselines of each leading metric come with it, as a report needs them to say that nothing was learned.
    labels = [line.split("\t")[0] for line in (tmp_path / "texts" / "validation.txt").read_text().splitlines()]
    best = max(labels.count("cat"), labels.count("dogs")) / 12  # of the two constant answers
    trivial = {
        "first": {"first_constant_accuracy": best},
        "second": {"second_constant_matthews": 0},
    }
    for cell in results.cells:
        assert trivial[cell.plan.task].items() <= cell.metrics.items()
        both = (best + 0) / 2
        assert cell.metrics["average_constant"] == pytest.approx(both)
    assert results.plan.trivial == {"first_constant_accuracy", "second_constant_matthews", "average_constant"}
    assert {title for _, title in results.comparisons.over_trivial} == {"constant answers"}
    said = capfd.readouterr().err
    assert "two: 8 cells, 0 already done" in said
    assert "| variant " in said
    before, removed = stamps(out), results.cells[3].plan.id
    shutil.rmtree(out / "cells" / removed)
    examples = tmp_path / "texts" / "validation.txt"
    text = examples.read_text()
    examples.write_text(text + "cat\tthe cat sat\n")
    with pytest.raises(CellsFailed):  # the others have learned from other examples
        ablate(file, out)
    assert "the examples have changed" in (out / "logs" / f"{removed}.txt").read_text()
    examples.write_text(text)
    ablate(file, out)
    after = stamps(out)
    assert after.keys() == before.keys()
    assert [path for path in before if after[path] != before[path] and removed not in str(path)] == []


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let fine-tunings finish at once with the numbers of SCORES; returns the list of those begun."""
    found: list[str] = []

    def finish(folder: FinetuningFolder, loaded: Any, device: Any) -> None:
        config, variant = loaded.config, "random" if loaded.config.init == "random" else "ours"
        found.append(f"{variant} {config.name} {config.seeds[0]}")
        folder.write("finetuning.yaml", "name: x\n")
        value = SCORES[variant].get(config.name, [0.5, 0.5])[config.seeds[0]]
        splits = {"train": {}, "validation": {"accuracy": value, "matthews": value}, "test": {"accuracy": 0.0}}
        write_seed(folder.path, config.seeds[0], splits, id=folder.path.name)

    monkeypatch.setattr(cells, "run_remaining_seeds", finish)
    monkeypatch.setattr(cells, "_refuse_other_weights", lambda *_: None)  # there is no model; test_moved.py
    monkeypatch.setattr("electra_lab.jobs.sweeps.plan.check_finetuning", lambda loaded: None)
    leave_out_curve(monkeypatch)
    return found


def test_the_table_has_a_column_for_each_task_and_their_average(tmp_path: Path, begun: list[str]) -> None:
    out = ablate(write(tmp_path, tmp_path), tmp_path / "out")
    assert begun[:4] == ["ours first 0", "random first 0", "ours second 0", "random second 0"]
    results = read(out)
    assert (results.plan.metric, results.plan.baseline) == (AVERAGE, "ours")
    assert results.values(AVERAGE)["ours"] == {0: pytest.approx(0.35), 1: pytest.approx(0.55)}
    page = Page(out / "report.html")
    assert "With 2 seeds this is exploratory" in page.text
    assert "first of validation and test that has labels" in page.text
    assert "{}" not in page.text
    header, ours, random = page.table("The tasks")
    assert header == ["variant", "first", "second", "average"]
    assert [cell.split()[0] for cell in ours] == ["ours", "0.6000", "0.3000", "0.4500"]
    assert [cell.split()[0] for cell in random] == ["random", "0.4500", "0.1000", "0.2750"]
    assert page.table("Differences")[2][1].startswith("-0.1500")
    cells = [row[0] for row in page.table("The cells")[1:]]
    assert cells == ["ours, first", "ours, second", "random, first", "random, second"]
    with (out / "table.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert AVERAGE not in rows[0]
    found = [(row["variant"], row["task"], row["seed"], row["first"]) for row in rows[:3]]
    assert found == [("ours", "first", "0", "0.5"), ("random", "first", "0", "0.4"), ("ours", "second", "0", "")]


def test_keys_models_and_one_task_can_be_varied(tmp_path: Path, begun: list[str]) -> None:
    vary = {"train.epochs": [1, 2], "model": [str(tmp_path), str(tmp_path / "texts")]}
    file = write(tmp_path, tmp_path, base="first.yaml", vary=vary, set={"train.batch_size": 3}, seeds=[7])
    ablation = load_ablation(file, ["train.learning_rate=0.5"])
    found = configs(ablation).values()
    both = list(itertools.product(vary["train.epochs"], vary["model"]))
    assert [(config.train.epochs, str(config.model)) for config in found] == both
    assert {(config.train.batch_size, config.train.learning_rate, *config.seeds) for config in found} == {(3, 0.5, 7)}
    assert run.check(file, [])[0].splitlines()[3] == "  metric    first"


def test_a_task_without_training_takes_one_seed_unless_weights_are_random(tmp_path: Path) -> None:
    write_finetuning(tmp_path, tmp_path, name="grammar", **GRAMMAR)
    ablation = load_ablation(write(tmp_path, tmp_path, base="grammar.yaml", seeds=[3, 4]))
    assert [*configs(ablation)] == [("ours", "grammar", 3), ("random", "grammar", 3), ("random", "grammar", 4)]


def test_a_task_without_data_is_left_out_until_it_has_some(tmp_path: Path, begun: list[str], capfd) -> None:
    file = write(tmp_path, tmp_path)
    write_finetuning(tmp_path, tmp_path, name="first", **QUICK, dataset={"type": "lines", "folder": "elsewhere"})
    out = ablate(file, tmp_path / "out")
    assert {words.split()[1] for words in begun} == {"second"}
    assert "elsewhere: has no .txt files." in AblationFolder(out).plan.gaps["first"]
    said = capfd.readouterr().err
    assert "two: 8 cells, 0 already done" in said
    assert "first: left out: " in said
    lacking = "no average without first"
    assert lacking in said.rpartition("8 cells")[2]  # with the result
    assert lacking in (out / "table.md").read_text()
    assert "4 already done" in run.dry_run(file, [], out, "cpu", None, None)
    page = Page(out / "report.html")
    assert "first is left out: " in page.text
    assert [cell.split()[0] for cell in page.table("The tasks")[1][1:]] == ["-", "0.3000", "-"]
    assert [page.table("Differences")[2][i].split()[0] for i in (1, 3)] == ["-", "-"]
    shutil.copytree(tmp_path / "texts", tmp_path / "elsewhere")
    ablate(file, out)
    assert {words.split()[1] for words in begun[4:]} == {"first"}
    assert AblationFolder(out).plan.gaps == {}
    assert lacking not in (out / "table.md").read_text()
    shutil.rmtree(tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "texts")
    with pytest.raises(DataError, match=r"has no \.txt files"):
        ablate(file, tmp_path / "other")


def test_what_fails_is_named_and_stops_no_other(tmp_path: Path, begun: list[str], monkeypatch) -> None:
    finish = cells.run_remaining_seeds

    def diverging(folder: FinetuningFolder, loaded: Any, device: Any) -> None:
        if loaded.config.init == "random" and loaded.config.name == "first":
            folder.seed(loaded.config.seeds[0]).path.mkdir()
            folder.seed(loaded.config.seeds[0]).note_divergence("the loss was not finite")
            raise DivergedError("the loss was not finite")
        finish(folder, loaded, device)

    file = write(tmp_path, tmp_path, retries=1)
    with monkeypatch.context() as patched:
        patched.setattr(cells, "run_remaining_seeds", diverging)
        with pytest.raises(CellsFailed, match=r"^2 of 8 runs failed"):
            ablate(file, tmp_path / "out")
    assert "random, seed 0 failed once: the loss was not finite" in Page(tmp_path / "out/report.html").text
    assert read(tmp_path / "out").values(AVERAGE)["random"] == {}
    del begun[:]
    ablate(file, tmp_path / "out")
    assert begun == ["random first 0", "random first 1"]


def test_a_fine_tuning_that_cannot_be_used_is_set_aside(tmp_path: Path, begun: list[str]) -> None:
    folder, said = AblationFolder(ablate(write(tmp_path, tmp_path), tmp_path / "out")), list[str]()
    cell = folder.plan.cells[0]
    (folder.finetuning(cell.id).seed(0).path / "results.json").write_text("{")
    quarantine_damaged(folder, folder.plan, said.append)
    assert said == []  # it is measured
    (folder.path / "cells" / cell.id / "measures.json").unlink()
    quarantine_damaged(folder, folder.plan, said.append)
    assert len(said) == 1
    assert (folder.path / "damaged" / f"{cell.id}-0").is_dir()
    assert read(folder.path).cells[0].status == "missing"


def test_a_cell_is_found_again_by_its_content(tmp_path: Path) -> None:
    before = {cell.id for cell in load_ablation(write(tmp_path, tmp_path)).cells}
    file = write(tmp_path, tmp_path, name="other", question="Why?", seeds=[1, 0, 2])
    assert before < {cell.id for cell in load_ablation(file).cells}
    assert not before & {cell.id for cell in load_ablation(file, ["train.epochs=2"]).cells}


@pytest.mark.parametrize(
    ("sections", "place", "reason"),
    [
        ({"base": ["first.yaml", "copy.yaml"]}, "base.1", "'first'"),
        ({"base": ["first.yaml", "run/config.yaml"]}, "base.1", "experiment"),
        ({"base": ["third.yaml"]}, "base.0", "does not exist"),
        ({"base": []}, "base", "required"),
        ({"set": {"train.epoch": 2}}, "train.epoch", "Did you mean 'epochs'?"),
        ({"set": {"seeds": [3]}}, "set: seeds", "under the ablation's own `seeds`"),
        ({"set": {"evaluate.metric": "acuracy"}}, "evaluate.metric", "Did you mean 'accuracy'?"),
        ({"vary": {"name": ["a", "b"]}}, "vary: name", "is set by the ablation"),
        ({"vary": {"a": {}, "b": {"trackers": []}}}, "vary: trackers", "under `set`"),
        ({"vary": {"a": {}, "b": {"init": "pretrained"}}}, "vary", "a and b are the same"),
        ({"budget": {"steps": 3}}, "budget", "is for experiments"),
        ({"measure": [{"type": "pretraining"}]}, "measure", "is for experiments"),
        ({"metric": "accuracy"}, "metric", "Known: average, first, second"),
        ({"task": {"type": "x"}}, "task", "put it under `set`"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_line(tmp_path: Path, model: Path, sections, place, reason) -> None:
    path = write(tmp_path, model, **sections)
    shutil.copy(tmp_path / "first.yaml", tmp_path / "copy.yaml")
    shutil.copytree(model, tmp_path / "run", dirs_exist_ok=True)
    with pytest.raises(ConfigError) as caught:
        ablate(path, tmp_path / "out")
    assert f": {place}" in str(caught.value)
    assert reason in str(caught.value)
    assert not (tmp_path / "out").exists()
