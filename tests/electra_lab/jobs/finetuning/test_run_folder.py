"""The folder of a seed of a fine-tuning: files, logs, and refused resumes."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from electra_lab.config.load import load_finetuning
from electra_lab.export.export import export
from electra_lab.jobs import lifecycle
from electra_lab.jobs.finetuning import run
from electra_lab.jobs.finetuning.run import finetune, resume
from electra_lab.pretrained.opening import finetuned_config
from electra_lab.storage.finetuning_folder import FinetuningFolder, SeedResults
from electra_lab.storage.run_directory import RunDirectory
from registry import Dataset, Results, Table, datasets
from registry.errors import CheckpointError, ConfigError, DataError, LabError
from tests.electra_lab.jobs.finetuning.small import PLUGIN, predictions, write_finetuning
from tests.electra_lab.jobs.pretraining.tiny import Killed, for_a_module
from tests.electra_lab.jobs.pretraining.tiny import timeless as records
from tests.electra_lab.presentation.finetuned import leave_out_curve
from tests.helpers import rewrite_config

ERRORS = PLUGIN.with_name("errors.py")


@pytest.fixture(autouse=True)
def _no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_curve(monkeypatch)


@pytest.mark.parametrize("metric", ["errors", "accuracy"])
def test_the_best_weights_are_best_in_the_direction_of_the_metric(tmp_path: Path, model: Path, metric: str) -> None:
    sections: dict[str, Any] = {"task": {"type": "by_errors", "head": "dense"}, "imports": [str(PLUGIN), str(ERRORS)]}
    path = write_finetuning(tmp_path, model, **sections)
    overrides = ["evaluate.select=best", "evaluate.every=1", "train.learning_rate=3e-2", "train.layer_decay=1.0"]
    folder = finetune(path, [*overrides, f"evaluate.metric={metric}"], tmp_path / "out", "cpu") / "seed-0"
    seen = {r["step"]: r[metric] for r in records(folder) if r["split"] == "validation"}
    choose = min if metric == "errors" else max
    best = choose(seen, key=lambda step: seen[step])  # the first of several equal ones
    results = FinetuningFolder(folder.parent).results(0)
    assert len(set(seen.values())) > 1
    assert best not in (1, 12)
    assert results.step == best
    assert results.splits["validation"].metrics[metric] == seen[best]
    kept, final = sorted((folder / "checkpoints").glob("step-*"))
    assert (kept.name, final.name) == (f"step-{best:08d}", "step-00000012")
    saved, exported = load_file(kept / "state.safetensors"), load_file(folder / "model" / "model.safetensors")
    last = load_file(final / "state.safetensors")
    assert torch.equal(exported["classifier.out_proj.weight"], saved["model.head.out.weight"])
    assert not torch.equal(exported["classifier.out_proj.weight"], last["model.head.out.weight"])
    # Its config is read with the plug-ins that it keeps, wherever the original ones are now.
    config = (folder / "config.yaml").read_text()
    rewrite_config(folder, config.replace(str(PLUGIN.parent), "/moved"))
    assert [plugin.file for plugin in finetuned_config(folder).plugins] == [PLUGIN, ERRORS]


# Accuracy by step, until the process is killed.
FIRST = dict(enumerate((0.1, 0.2, 0.5, 0.3, 0.3, 0.4, 0.9, 0.2), start=1))
AGAIN = {step: 0.04 * step for step in range(1, 13)}


@pytest.mark.parametrize(("damaged", "best"), [(False, 7), (True, 3)])
def test_the_best_weights_are_of_the_continuation_that_the_records_are_of(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool, best: int
) -> None:
    """Killed at step 9, resumed with other micro-batches from the newest undamaged checkpoint, of step 5 or 7."""
    path = write_finetuning(tmp_path, model, checkpoint={"every": 5, "keep": 2})
    train, values = lifecycle.train, dict(FIRST)

    def known(*given: Any, **named: Any) -> Any:
        for record in train(*given, **named):
            if record.values.get("split") == "validation":
                record.values.update(found=record.values["accuracy"], accuracy=values.get(record.step, 0.0))
            if record.step > max(values):
                raise Killed
            yield record

    monkeypatch.setattr(lifecycle, "train", known)
    with pytest.raises(Killed):
        finetune(path, ["evaluate.select=best", "evaluate.every=1"], tmp_path / "out", "cpu")
    seed, values = tmp_path / "out" / "seed-0", AGAIN
    if damaged:
        (seed / "checkpoints" / "step-00000007" / "MANIFEST.json").unlink()
    resume(tmp_path / "out", "cpu", ["train.micro_batch_size=2"])
    validated = {r["step"]: r for r in records(seed) if r["split"] == "validation"}
    assert list(validated) == list(range(1, 13))
    assert max(validated, key=lambda step: validated[step]["accuracy"]) == best
    results = FinetuningFolder(tmp_path / "out").results(0)
    assert results.step == best
    assert results.splits["validation"].metrics["accuracy"] == validated[best]["found"]
    names = sorted(path.name for path in (seed / "checkpoints").iterdir())
    assert names == [f"step-{step:08d}" for step in (best, 10, 12)]


def cut_off(model: Path, folder: Path, *overrides: str, **sections: Any) -> Path:
    """Stop a fine-tuning with falling accuracy right before its results; returns its folder."""
    train = lifecycle.train

    def worse_and_worse(*given: Any, **named: Any) -> Any:
        for record in train(*given, **named):
            if record.values.get("split") == "validation":
                record.values["accuracy"] = -record.step
            yield record

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with for_a_module() as patched:
        patched.setattr(run, "_keep_results", interrupt)
        patched.setattr(lifecycle, "train", worse_and_worse)
        with pytest.raises(KeyboardInterrupt):
            finetune(write_finetuning(folder, model, **sections), overrides, folder / "out", "cpu")
    return folder / "out"


@pytest.fixture(scope="module")
def stopped(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cut_off(model, tmp_path_factory.mktemp("cut"), train={"epochs": 0.5, "batch_size": 6, "precision": "fp32"})


@pytest.fixture(scope="module")
def stopped_at_best(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with the weights of an early step kept as the best."""
    return cut_off(model, tmp_path_factory.mktemp("best"), "evaluate.select=best")


def test_the_best_weights_that_are_damaged_are_not_replaced_by_others(stopped_at_best: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stopped_at_best, tmp_path / "out")
    kept = min((folder / "seed-0" / "checkpoints").glob("step-*"))
    (kept / "state.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError) as caught:
        resume(folder, "cpu")
    assert str(caught.value).startswith(f"{kept}: state.safetensors is damaged")
    assert f"delete {folder / 'seed-0'} and resume" in str(caught.value)
    assert "resume its run" not in str(caught.value)
    shutil.rmtree(folder / "seed-0")
    resume(folder, "cpu")
    assert FinetuningFolder(folder).results(0) is not None


def test_the_log_shows_the_loss_and_the_leading_metric(tuned: tuple[Path, Path, str]) -> None:
    _, folder, output = tuned
    said = [line for line in output.partition("seed 5:")[0].splitlines() if line.startswith("step ")]
    seen = [r for r in records(folder / "seed-3") if r["split"] == "validation"]
    assert [line for line in said if "validation" in line] == [
        f"step {r['step']:>6}  validation  loss {r['loss']:.3f}  Matthews correlation {r['matthews']:.3f}" for r in seen
    ]
    trained = [line for line in said if " train " in line]
    assert [int(line.split()[1]) for line in trained] == [5, 10, 12]
    assert all(re.fullmatch(r"step +\d+  train       loss \d\.\d{3}  [\d,]+ tokens/s", line) for line in trained)
    began = RunDirectory(folder / "seed-3").provenance()
    constant = ["constant_accuracy", "constant_f1", "constant_matthews"]
    assert list(began.metrics)[:7] == ["matthews", "accuracy", "f1", *constant, "cut_examples"]
    assert list(json.loads((folder / "results.json").read_text())["validation"]) == list(began.metrics)[:7]


def test_provenance_says_what_was_trained(tuned: tuple[Path, Path, str]) -> None:
    path, folder, _ = tuned
    began = json.loads((folder / "seed-3" / "provenance.json").read_text())
    state = load_file(folder / "seed-3" / "checkpoints" / "step-00000012" / "state.safetensors")
    sizes = dict.fromkeys(("network", "head", "total"), 0)
    for name, tensor in state.items():
        if name.startswith("model."):
            sizes[name.split(".")[1]] += tensor.numel()
            sizes["total"] += tensor.numel()
    assert began["parameters"] == sizes
    assert began["data"]["documents"] == {"train": 24, "validation": 12, "test": 6}
    assert began["steps"] == 12
    assert began["flops"] == 12 * began["flops_per_step"] > 0
    assert began["facts"] == {"labels": ["cat", "dogs"], "usual": "cat"}
    assert began["environment"]["precision"] == "fp32"
    assert (folder / "source.yaml").read_text() == path.read_text()
    whole, own = [yaml.safe_load((folder / name).read_text()) for name in ("finetuning.yaml", "seed-3/config.yaml")]
    assert whole == own | {"seeds": [3, 5]}
    assert (own["seeds"], own["train"]["layer_decay"]) == ([3], 0.8)


class Submitting:
    """A dataset whose benchmark takes submissions of the test's predictions."""

    @staticmethod
    def submission(split: str, predictions: list[Mapping[str, Any]]) -> tuple[str, str] | None:
        return ("TEST.tsv", "".join(f"{row['id']}\n" for row in predictions)) if split == "test" else None


class Failing:
    def submission(self, split: str, predictions: object) -> None:
        raise DataError("no")


def keep(folder: Path, dataset: object, **found: Results) -> SeedResults:
    kept = SeedResults(run="one-3", seed=3, step=7, splits={}, lost={"cut_examples": {"train": 0.5}})
    run._keep_results(RunDirectory(folder), dataset, kept, found)  # type: ignore[arg-type]
    return SeedResults.model_validate_json((folder / "results.json").read_text())


def test_results_are_kept_as_the_task_gave_them(tmp_path: Path) -> None:
    given = [{"id": "1", "prediction": "größer\u2028日"}, {"id": "2", "prediction": None}]
    metrics = {"a": 0.5, "b": math.nan, "c": math.inf, "d": -math.inf, "e": 0.0}
    table = Table("Confusion", ("", "x"), (("x", 3),))
    found = keep(tmp_path, Submitting(), validation=Results(metrics, given, [table]), test=Results({}, given))
    assert (found.seed, found.step, found.lost) == (3, 7, {"cut_examples": {"train": 0.5}})
    assert list(found.splits) == ["validation", "test"]
    validation, test = found.splits.values()
    assert validation.metrics == {"a": 0.5, "b": None, "c": None, "d": None, "e": 0.0}
    assert validation.tables == [{"title": "Confusion", "header": ["", "x"], "rows": [["x", 3]]}]
    assert (validation.examples, test.examples, test.metrics, test.tables) == (2, 2, {}, [])
    for split in ("validation", "test"):
        text = (tmp_path / f"predictions-{split}.jsonl").read_text(encoding="utf-8")
        assert [json.loads(line) for line in text.split("\n")[:-1]] == given
        assert "größer" in text
    assert [file.name for file in (tmp_path / "submission").iterdir()] == ["TEST.tsv"]
    assert (tmp_path / "submission" / "TEST.tsv").read_text() == "1\n2\n"
    (tmp_path / "plain").mkdir()
    keep(tmp_path / "plain", Dataset(), test=Results({}, []))
    assert not (tmp_path / "plain" / "submission").exists()
    # Results are written last and mark a finished seed.
    (tmp_path / "failed").mkdir()
    with pytest.raises(DataError, match="no"):
        keep(tmp_path / "failed", Failing(), test=Results({"a": 1.0}, []))
    assert [file.name for file in (tmp_path / "failed").iterdir()] == ["predictions-test.jsonl"]


def edited(stopped: Path, folder: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    """Return a copy with changed provenance."""
    folder = shutil.copytree(stopped, folder)
    file = folder / "seed-0" / "provenance.json"
    began = json.loads(file.read_text())
    edit(began)
    file.write_text(json.dumps(began))
    return folder


REFUSALS: dict[str, tuple[Callable[[dict[str, Any]], object], type[LabError], str]] = {
    "format": (lambda began: began.update(format=2), CheckpointError, "in format 2; this version reads format"),
    "config": (lambda began: began["config"]["train"].update(epochs=9.0), ConfigError,
               "finetuning.yaml: these values affected earlier steps and cannot change: train.epochs 9.0 -> 0.5."),
    "examples": (lambda began: began["data"].update(store="0"), DataError, "the examples have changed since"),
    "weights": (lambda began: began["init"]["discriminator"]["sha256"].update(more="0"), DataError, "the weights of"),
    "plug-ins": (lambda began: began["plugins"][0].update(sha256="0"), ConfigError, "the plug-ins have changed since"),
    "fewer plug-ins": (lambda began: began["plugins"].clear(), ConfigError, "the plug-ins have changed since"),
}  # fmt: skip


@pytest.mark.parametrize("changed", REFUSALS)
def test_what_a_run_began_with_must_be_the_same(stopped: Path, tmp_path: Path, changed: str) -> None:
    edit, kind, reason = REFUSALS[changed]
    folder = edited(stopped, tmp_path / "out", edit)
    before = (folder / "seed-0" / "provenance.json").read_text()
    with pytest.raises(kind) as caught:
        resume(folder, "cpu")
    assert str(caught.value).startswith(f"{folder}/")
    assert reason in str(caught.value)
    assert (folder / "seed-0" / "provenance.json").read_text() == before
    assert not (folder / "seed-0" / "results.json").exists()


def test_what_changes_no_step_may_change_on_a_resume_and_another_machine_is_noted(stopped, tmp_path, capsys) -> None:
    folder = edited(stopped, tmp_path / "out", lambda began: began["environment"].update(processor="Z80"))
    given = ["train.micro_batch_size=2", "evaluate.batch_size=3", "checkpoint.keep=2", "seeds=[0, 1]"]
    resume(folder, "cpu", given)
    said = capsys.readouterr().err
    assert re.search(r"not bit-exact, because of processor Z80 -> \S+\n", said)
    assert "the run is already complete" in said.partition("seed 1")[0]
    assert RunDirectory(folder / "seed-0").provenance().environment.processor == "Z80"
    assert len(predictions(folder / "seed-0", "validation")) == 12
    assert FinetuningFolder(folder).values("validation", "accuracy").keys() == {0, 1}
    for seed, step in (("seed-0", 2), ("seed-1", None)):
        began = RunDirectory(folder / seed).provenance()
        assert began.config["train"]["micro_batch_size"] == 2
        assert (folder / seed / "config.yaml").read_text().count("micro_batch_size: 2") == 1
        assert [change.step for change in began.changes] == ([] if step is None else [step])
    [change] = RunDirectory(folder / "seed-0").provenance().changes
    assert change.values == {
        "train.micro_batch_size": (None, 2), "evaluate.batch_size": (32, 3), "checkpoint.keep": (1, 2)
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"train.batch_size 6 -> 4; train.clip_norm 1.0 -> 3.0\. .*seeds"):
        resume(folder, "cpu", ["train.batch_size=4", "train.clip_norm=3", "train.log_every=1"])
    assert "clip_norm: 1.0" in (folder / "finetuning.yaml").read_text()


def test_seeds_may_be_added_to_the_file_if_nothing_else_has_changed(stopped: Path, tmp_path: Path, capsys) -> None:
    """All seeds of a folder must be comparable."""
    folder = Path(shutil.copytree(stopped, tmp_path / "out"))
    file = folder / "finetuning.yaml"
    before = file.read_text()
    with pytest.raises(ConfigError, match=r"train\.frozen"):
        resume(folder, "cpu", ["train.frozen=true"])
    file.write_text(before.replace("epochs: 0.5", "epochs: 1.0"))
    with pytest.raises(ConfigError, match=r"finetuning.yaml: these values .*: train.epochs 0.5 -> 1.0"):
        resume(folder, "cpu")
    file.write_text(before.replace("seeds:\n- 0\n", "seeds:\n- 0\n- 1\n"))
    resume(folder, "cpu")
    assert "bit-exact" not in capsys.readouterr().err
    assert FinetuningFolder(folder).values("validation", "accuracy").keys() == {0, 1}
    # A finished seed is not mixed with seeds trained on other examples.
    train = stopped.parent / "texts" / "train.txt"
    text = train.read_text()
    train.write_text(text + "cat\tthe cat sat\n")
    with pytest.raises(DataError, match="seed-0: the examples have changed since the run began"):
        resume(folder, "cpu", ["seeds=[0, 1, 2]"])
    train.write_text(text)
    assert not (folder / "seed-2").exists()


def test_a_model_may_move_but_its_tokenizer_must_stay(tuned, tmp_path: Path) -> None:
    """When seeds are added, its folder may have another name."""
    model = Path(yaml.safe_load(tuned[0].read_text())["model"])
    first, second = export(model, tmp_path / "exported").path / "discriminator", tmp_path / "renamed"
    folder = finetune(tuned[0], [f"model={first}", "seeds=[0]", "train.epochs=0.5"], tmp_path / "out", "cpu")
    first.rename(second)
    resume(folder, "cpu", ["seeds=[0, 1]", f"model={second}"])
    tokenizer = json.loads((second / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "NFD"}
    (second / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(DataError, match=r"seed-0: the weights of .* or its tokenizer, have changed"):
        resume(folder, "cpu", ["seeds=[0, 1, 2]", f"model={second}"])
    assert not (folder / "seed-2").exists()


def test_killed_before_the_first_checkpoint_no_record_comes_twice(tmp_path: Path, tuned, monkeypatch) -> None:
    def killed(*_: Any) -> None:
        raise Killed

    path, whole, _ = tuned
    with monkeypatch.context() as patched:
        patched.setattr(lifecycle.Saver, "save", lambda self: None)
        patched.setattr(run, "_keep_model", killed)
        with pytest.raises(Killed):
            finetune(path, ["seeds=[3]"], tmp_path / "cut", "cpu")
    metrics = tmp_path / "cut" / "seed-3" / "metrics.jsonl"
    assert metrics.read_text().count("\n") > 1
    metrics.write_text(metrics.read_text()[:-9])
    resume(tmp_path / "cut", "cpu")
    assert records(tmp_path / "cut" / "seed-3") == records(whole / "seed-3")


def test_checkpoints_that_are_gone_stop_a_fine_tuning(stopped: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stopped, tmp_path / "out")
    shutil.rmtree(folder / "seed-0" / "checkpoints")
    with pytest.raises(CheckpointError, match="checkpoint"):
        resume(folder, "cpu")


def test_all_seeds_have_the_examples_that_are_read_once(tmp_path: Path, tuned, monkeypatch) -> None:
    path, _, _ = tuned
    load_finetuning(path)  # loads the plug-in of the dataset
    lines = datasets.get("lines").component
    read, splits = lines.read, list[str]()
    monkeypatch.setattr(lines, "read", lambda self, split: splits.append(split) or read(self, split))
    folder = finetune(path, ["seeds=[0, 1]", "train.epochs=0.5"], tmp_path / "out", "cpu")
    assert FinetuningFolder(folder).values("validation", "accuracy").keys() == {0, 1}
    assert sorted(splits) == ["test", "train", "validation"]
