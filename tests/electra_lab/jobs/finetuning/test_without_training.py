"""Tasks without training judge a model and refuse training options; also a small run of the built-in task."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from electra_lab.jobs.finetuning.run import finetune, resume
from electra_lab.jobs.pretraining import execute
from electra_lab.storage.finetuning_folder import FinetuningFolder
from electra_lab.storage.run_directory import RunDirectory
from registry import datasets
from tests.electra_lab.jobs.finetuning.small import predictions, refusal, write_finetuning
from tests.helpers import ROOT

PAIRS = {
    "name": "grammar", "task": {"type": "minimal_pairs"}, "dataset": {"type": "line_pairs", "folder": "texts"},
    "train": None, "checkpoint": None, "evaluate": None,
}  # fmt: skip


def test_a_task_without_training_judges_the_model_as_it_is(tmp_path: Path, model: Path) -> None:
    folder = finetune(write_finetuning(tmp_path, model, **PAIRS), [], tmp_path / "out", "cpu")
    results = FinetuningFolder(folder).results(0)
    assert results.step == 0
    found = predictions(folder / "seed-0", "test")
    counts = [{True: 1.0, False: 0.0, None: 0.5}[prediction["correct"]] for prediction in found]
    assert results.splits["test"].metrics["grammar_accuracy"] == sum(counts) / 20
    assert not (folder / "seed-0" / "checkpoints").exists()
    assert "\ntrain:" not in (folder / "finetuning.yaml").read_text()
    began = RunDirectory(folder / "seed-0").provenance()
    assert (began.steps, began.flops, began.flops_per_step) == (0, 0, 0)
    assert (began.data.documents, began.data.store) == ({"test": 20}, "pairs")
    assert began.parameters.keys() == {"discriminator", "generator"}
    assert next(iter(began.metrics)) == "grammar_accuracy"
    before = (folder / "results.json").read_text()
    (folder / "seed-0" / "results.json").unlink()
    resume(folder, "cpu")
    assert (folder / "results.json").read_text() == before


def test_a_task_without_training_judges_the_network_that_the_file_names(tmp_path: Path, model: Path) -> None:
    scores = []
    for number, given in enumerate((["network=generator"], ["task.network=generator"], [])):
        task = ["task.score=pseudo_likelihood"] if given else []
        folder = finetune(write_finetuning(tmp_path, model, **PAIRS), [*given, *task], tmp_path / str(number), "cpu")
        scores.append([prediction["good_score"] for prediction in predictions(folder / "seed-0", "test")])
    assert scores[0] == scores[1] != scores[2]
    said = refusal(write_finetuning(tmp_path, model, **PAIRS), "network=generator", "task.score=detection")
    assert said.startswith("--set task.score=detection: task: ")
    assert "'replaced'" in said


def test_random_weights_give_the_null_distribution(tmp_path: Path, model: Path) -> None:
    path = write_finetuning(tmp_path, model, **PAIRS, init="random", seeds=[0, 1, 2])
    folder = finetune(path, [], tmp_path / "out", "cpu")
    scores = []
    for seed in (0, 1, 2):
        scores.append([prediction["good_score"] for prediction in predictions(folder / f"seed-{seed}", "test")])
    assert scores[0] != scores[1] != scores[2]


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["train.epochs=1"], "train: minimal_pairs trains nothing; remove this key."),
        (["trackers=[{type: tensorboard}]"], "trackers: minimal_pairs trains nothing; remove this key."),
        (["seeds=[0, 1]"], "--set seeds=[0, 1]: seeds: "),
        (["task.score=pseudo_likelihood", "task.network=discriminator"], "task: "),
    ],
)
def test_what_training_alone_has_is_refused(tmp_path: Path, model: Path, overrides: list[str], reason: str) -> None:
    assert reason in refusal(write_finetuning(tmp_path, model, **PAIRS), *overrides)


@pytest.mark.slow  # a training on real text
def test_a_small_network_learns_where_docstrings_come_from(tmp_path: Path) -> None:
    dataset = datasets.get("docstring_origin").component()
    text = "\n\n".join(example.text.replace("\n\n", "\n") for example in dataset.read("train"))
    (tmp_path / "corpus.txt").write_text(text, encoding="utf-8")
    corpus = f"corpus={{type: text_files, paths: [{tmp_path / 'corpus.txt'}]}}"
    begun = [corpus, f"data.store={tmp_path / 'store'}", "train.steps=2", "schedules.learning_rate.warmup_steps=1"]
    model = execute.run(ROOT / "experiments" / "transformer_tiny.yaml", begun, tmp_path / "model", "cpu")
    quick = ["train.epochs=3", "train.learning_rate=5e-3", "train.layer_decay=1.0", "train.precision=fp32"]
    file = ROOT / "experiments" / "downstream" / "docstring_origin.yaml"
    folder = finetune(file, [f"model={model}", "seeds=[0]", *quick], tmp_path / "out", "cpu")
    examples = list(dataset.read("validation"))
    share = Counter(example.label for example in examples).most_common(1)[0][1] / len(examples)
    accuracy = FinetuningFolder(folder).values("validation", "accuracy")[0]
    assert accuracy > share + 4 * (share * (1 - share) / len(examples)) ** 0.5
