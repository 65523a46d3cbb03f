"""Fine-tuning from a file to its folder: results, seeds, resuming."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from electra_lab.config.load import load_finetuning
from electra_lab.jobs import lifecycle
from electra_lab.jobs.finetuning.experiment import Finetuning, assemble, declared, open_dataset, read_examples
from electra_lab.jobs.finetuning.run import finetune, resume
from electra_lab.model.flops import MATRIX_PRODUCTS
from electra_lab.storage.finetuning_folder import FinetuningFolder
from electra_lab.training import graph, random
from electra_lab.training.graph import Recorded
from electra_lab.training.loop import Run
from registry.errors import Interrupted
from tests.electra_lab.jobs.finetuning.small import predictions, pretrained, refusal, write_finetuning, write_lines
from tests.electra_lab.jobs.pretraining.tiny import timeless as records
from tests.electra_lab.training.recorded import CpuGraphs

CUDA = (pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"))
WAYS = [("fp32", 1e-3), ("bf16", 0.03)]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    newest = max((folder / "checkpoints").glob("step-*"))
    return load_file(newest / "state.safetensors")


def built(path: Path, *overrides: str, seed: int = 0) -> Finetuning:
    return assemble(load_finetuning(path, overrides), seed, torch.device("cpu"))


@pytest.mark.parametrize(
    ("device", "precision", "bound"),
    [("cpu", "bf16", 0.03), *(pytest.param("cuda", *rest, marks=CUDA) for rest in WAYS)],
)
def test_the_losses_of_every_device_and_precision(tmp_path: Path, device: str, precision: str, bound: float) -> None:
    """Compared with fp32 on a CPU, for rows of several lengths. Without dropout, whose draws depend on the device."""
    still = "{type: bert, dim: 16, depth: 1, heads: 2, dropout: 0.0}"
    model = pretrained(tmp_path / "still", discriminator=still, embedding="{dim: 8, max_length: 16, dropout: 0.0}")
    losses = []
    for where, how in (("cpu", "fp32"), (device, precision)):
        file = write_finetuning(tmp_path, model, seeds=[0], data={"max_length": 16})
        overrides = [f"train.precision={how}", "train.log_every=1", "train.dropout=0.0"]
        out = finetune(file, overrides, tmp_path / where / how, where)
        losses.append([record["loss"] for record in records(out / "seed-0") if record["split"] == "train"])
    assert losses[1] == pytest.approx(losses[0], abs=bound)
    assert max(losses[0]) - min(losses[0]) > 5 * bound  # training changes the losses by more


def test_leaves_all_results_of_every_seed(tuned: tuple[Path, Path, str]) -> None:
    _, folder, said = tuned
    held = FinetuningFolder(folder)
    assert held.seeds() == [3, 5]
    for seed in (3, 5):
        found = predictions(folder / f"seed-{seed}", "validation")
        right = [prediction["prediction"] == prediction["label"] for prediction in found]
        assert [prediction["correct"] for prediction in found] == right
        results = held.results(seed)
        assert results.step == 12  # 3 epochs of 24 rows, 6 at a time
        assert results.splits["validation"].metrics["accuracy"] == sum(right) / len(found)
        assert results.splits["test"].metrics == {}
        tested = predictions(folder / f"seed-{seed}", "test")
        assert [prediction["id"] for prediction in tested] == [str(n) for n in range(1, 7)]
        text = (folder / f"seed-{seed}" / "submission" / "answers.txt").read_text()
        assert text.split() == [prediction["prediction"] for prediction in tested]
        validated = [record for record in records(folder / f"seed-{seed}") if record["split"] == "validation"]
        assert [record["step"] for record in validated] == [4, 8, 12]
        assert validated[-1]["accuracy"] == sum(right) / len(found)
    values = held.values("validation", "accuracy")
    summary = json.loads((folder / "results.json").read_text())["validation"]["accuracy"]
    assert summary["median"] == summary["mean"] == sum(values.values()) / 2
    assert summary["values"] == {"3": values[3], "5": values[5]}
    assert (folder / "report.html").stat().st_size > 1000
    assert "on validation, 2 seeds" in said
    assert "on test: no labels" in said


def test_it_learns(tmp_path: Path, model: Path) -> None:
    path = write_finetuning(tmp_path, model)
    overrides = ["train.epochs=20", "train.layer_decay=1.0", "train.learning_rate=1e-2"]
    folder = finetune(path, overrides, tmp_path / "out", "cpu")
    assert FinetuningFolder(folder).values("validation", "accuracy")[0] == 1.0


def test_a_resumed_fine_tuning_is_the_uninterrupted_one(tmp_path: Path, tuned, monkeypatch) -> None:
    file, whole, _ = tuned
    train, calls, cut = lifecycle.train, [], tmp_path / "cut"

    def stopping(*given: Any, **named: Any) -> Any:
        calls.append(1)
        for record in train(*given, **named):
            if len(calls) == 2 and record.step == 7 and not record.values:
                os.kill(os.getpid(), signal.SIGINT)
            yield record

    with monkeypatch.context() as patched:
        patched.setattr(lifecycle, "train", stopping)
        with pytest.raises(Interrupted, match=f"after step 7. Resume with: electra-lab resume {cut}$"):
            finetune(file, [], cut, "cpu")
    finished = cut / "seed-3" / "results.json"
    before = finished.stat().st_mtime_ns
    assert not (cut / "seed-5" / "results.json").exists()
    assert resume(cut, "cpu") == cut
    assert finished.stat().st_mtime_ns == before
    for seed in ("seed-3", "seed-5"):
        assert records(cut / seed) == records(whole / seed)
        for split in ("validation", "test"):
            assert predictions(cut / seed, split) == predictions(whole / seed, split)
    assert (cut / "results.json").read_text() == (whole / "results.json").read_text()


def test_a_recorded_fine_tuning_is_the_eager_one(tmp_path: Path, model: Path, monkeypatch, capsys) -> None:
    """With a recorder of operations instead of CUDA graphs, and batches of more than one width."""
    path, recorders = write_finetuning(tmp_path, model, evaluate={"every": 9}), []

    def recorded(run: Run, _: object, device: torch.device, say: Any) -> Recorded:
        recorders.append(CpuGraphs(run))
        return Recorded(run, recorders[-1], device, say)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(graph, "obstacle", lambda *_: None)
        patched.setattr(graph, "CudaGraphs", lambda _: None)
        patched.setattr(graph, "Recorded", recorded)
        patched.setattr(random, "_in_numpy", lambda *_: False)
        by_graphs = finetune(path, ["train.epochs=8"], tmp_path / "graphs", "cpu")
    assert recorders[0].recorded > 1
    assert "not recorded" not in capsys.readouterr().err
    eager = finetune(path, ["train.epochs=8", "train.graph=on"], tmp_path / "eager", "cpu")
    assert "not recorded as CUDA graphs: there is no CUDA device here" in capsys.readouterr().err
    states = [weights(folder / "seed-0") for folder in (by_graphs, eager)]
    assert [name for name, tensor in states[0].items() if not torch.equal(tensor, states[1][name])] == []
    assert predictions(by_graphs / "seed-0", "test") == predictions(eager / "seed-0", "test")


def test_random_weights_are_drawn_by_the_seed_and_others_are_those_of_the_model(tmp_path: Path, model: Path) -> None:
    path = write_finetuning(tmp_path, model)
    own = weights(model)["model.discriminator.backbone.layers.0.query.weight"]
    found, heads = [], []
    for init, seed in (("pretrained", 0), ("pretrained", 1), ("random", 0), ("random", 1), ("random", 1)):
        state = built(path, f"init={init}", seed=seed).model.state_dict()
        found.append(state["network.backbone.layers.0.query.weight"])
        heads.append(state["head.out.weight"])
        assert not state["head.out.bias"].any()
    assert [torch.equal(weight, own) for weight in found] == [True, True, False, False, False]
    assert not torch.equal(found[2], found[3])
    assert torch.equal(found[3], found[4])
    # The head depends only on the seed.
    assert heads[0].shape == (2, 16)
    assert [torch.equal(head, heads[1]) for head in heads] == [False, True, False, True, True]
    limit = (6 / (2 + 16)) ** 0.5  # Glorot and Bengio (2010)
    for head in heads:
        assert 0.9 * limit < float(head.abs().max()) <= limit
        assert float(head.std()) == pytest.approx(limit / 3**0.5, rel=0.2)


def test_the_size_of_the_batch_of_evaluation_does_not_matter(tmp_path: Path) -> None:
    """Although it affects the padding of texts, and a Reformer's hashes depend on the length."""
    sections = {"discriminator": "{type: reformer, dim: 16, depth: 2, heads: 2, bucket_size: 2}"}
    model = pretrained(tmp_path / "model", **sections)
    write_lines(tmp_path / "texts")
    lines = "".join(f"{'cat' if n % 3 else 'dogs'}\t{'the cat saw ' * (n % 4)}{n}\n" for n in range(12))
    (tmp_path / "texts" / "validation.txt").write_text(lines)
    path = write_finetuning(tmp_path, model)
    folder = finetune(path, ["evaluate.batch_size=1", "train.learning_rate=1e-2"], tmp_path / "out", "cpu")
    found = []
    for size in (1, 5, 12):
        (folder / "seed-0" / "results.json").unlink()
        resume(folder, "cpu", [f"evaluate.batch_size={size}"])
        found.append([prediction["certainty"] for prediction in predictions(folder / "seed-0", "validation")])
    assert max(found[0]) > min(found[0]) + 1e-3
    assert found[1] == pytest.approx(found[0], abs=1e-5)
    assert found[2] == pytest.approx(found[0], abs=1e-5)


def test_what_is_assembled_follows_the_file_and_its_examples(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, texts = write_finetuning(tmp_path, model), tmp_path / "texts" / "train.txt"
    texts.write_text(texts.read_text().replace(" sat on the mat", "", 12) + "zebra\tthe zebra sat\n")
    given = ["train.dropout=0.3", "data.train_examples=10", "train.batch_size=5"]
    made, other = built(path, *given), built(path, *given, seed=1)
    assert made.model.head.dropout.p == 0.3
    drawn = [int(example.id) for example in made.splits["train"].examples]
    assert drawn == sorted(set(drawn))
    assert len(drawn) == 10 < max(drawn)
    assert len(other.splits["train"].examples) == 10
    assert drawn != [int(example.id) for example in other.splits["train"].examples]
    assert made.settings.steps == other.settings.steps == 6
    # Labels are collected from all examples, not only from the sampled ones.
    assert "zebra" not in {example.label for example in made.splits["train"].examples}
    assert made.read.facts["labels"] == ["cat", "dogs", "zebra"]
    assert made.model.head.out.out_features == 3
    # FLOPs are counted for rows of mean length; a probe has no backward pass through the network.
    rows = made.splits["train"].batches
    mean = round(rows.tokens / 10)
    assert mean < rows.length
    forward = MATRIX_PRODUCTS.forward(made.model.network, mean, 0)
    assert made.settings.flops.per_step == 5 * 3 * forward
    assert built(path, *given, "train.frozen=true").settings.flops.per_step == 5 * forward
    # Work that all rows of a micro-batch share.
    monkeypatch.setattr("electra_lab.backbones.bert.Bert.shared_flops", lambda self, length: 1000, raising=False)
    for micro, times in (("null", 1), ("1", 5)):
        made = built(path, *given, f"train.micro_batch_size={micro}")
        assert made.settings.flops.per_step == 5 * 3 * forward + times * 3 * 1000


def test_a_probe_of_the_generator_trains_its_own_layers_alone(tmp_path: Path, model: Path) -> None:
    path = write_finetuning(tmp_path, model)
    folder = finetune(path, ["network=generator", "train.frozen=true"], tmp_path / "out", "cpu")
    trained, saved = weights(model), weights(folder / "seed-0")
    own = {name: tensor for name, tensor in saved.items() if name.startswith("model.network.")}
    assert own["model.network.backbone.layers.0.query.weight"].shape == (8, 8)
    for name, tensor in own.items():
        assert torch.equal(tensor, trained[name.replace("network", "generator", 1)]), name
    assert not any(name.startswith("optimizer.") and "network" in name for name in saved)
    assert json.loads((folder / "seed-0" / "provenance.json").read_text())["init"].keys() == {"generator"}


def test_labels_and_words_that_training_does_not_have_are_told_of_every_split(tmp_path: Path, model, capsys) -> None:
    """Labels unseen in training are errors; long texts are cut."""
    path = write_finetuning(tmp_path, model, train={"epochs": 1, "batch_size": 6, "precision": "fp32"})
    for split, longer in (("train", 6), ("test", 3)):
        file = tmp_path / "texts" / f"{split}.txt"
        lines = file.read_text().splitlines()
        file.write_text("".join(f"{line}{' and a mat' * 20 * (n < longer)}\n" for n, line in enumerate(lines)))
    file = tmp_path / "texts" / "validation.txt"
    file.write_text(file.read_text() + "cst\tthe cat sat\n" * 4)
    folder = finetune(path, [], tmp_path / "out", "cpu")
    assert [prediction["correct"] for prediction in predictions(folder / "seed-0", "validation")[12:]] == [False] * 4
    assert FinetuningFolder(folder).results(0).lost == {
        "cut_examples": {"train": 0.25, "validation": 0.0, "test": 0.5}, "unseen_labels": {"validation": 0.25},
    }  # fmt: skip
    opening, _, closing = capsys.readouterr().err.partition("\nstep ")
    page = (folder / "report.html").read_text()
    assert "25.0% of the labels of validation are in no training example" in opening
    assert "train 25.0%, validation 0.0%, test 50.0%" in opening
    for said in ("cut examples: train 25.0%, validation 0.0%, test 50.0%", "unseen labels: validation 25.0%"):
        assert said in closing
        assert said.split(": ")[1] in page


TABLE = {"type": "table", "train": "train.csv", "validation": "dev.csv"}
ROWS = "".join(f"the {animal} sat,{animal}\n" for animal in ("cat", "dogs") * 9)


def test_bad_rows_of_all_splits_are_named_before_anything_is_written(tmp_path: Path, model: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\nthe cat,\n" + ROWS + ",cat\na,b,c\n")
    (tmp_path / "dev.csv").write_text("text,label\n" + ROWS + "the cat, \n")
    said = refusal(write_finetuning(tmp_path, model, dataset=TABLE))
    for name, line in (("train.csv", 2), ("train.csv", 21), ("train.csv", 22), ("dev.csv", 20)):
        assert f"{tmp_path / name}:{line}: " in said
    assert "on_error: skip" in said
    assert not (tmp_path / "refused").exists()


def test_bad_rows_that_are_skipped_are_counted(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.csv").write_text("text,label\nthe cat,\n" + ROWS + ",cat\n")
    (tmp_path / "dev.csv").write_text("text,label\n" + ROWS)
    path = write_finetuning(tmp_path, model, dataset={**TABLE, "on_error": "skip"})
    folder = finetune(path, ["train.epochs=1"], tmp_path / "out", "cpu")
    assert f"2 of train, the first {tmp_path / 'train.csv'}:2: has no label" in capsys.readouterr().err
    data = json.loads((folder / "seed-0" / "provenance.json").read_text())["data"]
    assert (data["documents"], data["skipped"]) == ({"train": 18, "validation": 18}, {"train": 2})
    assert "2 of train left out" in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("gain", "init", "noted"), [(0.0, "pretrained", True), (0.4, "pretrained", False), (0.0, "random", False)]
)
def test_a_model_that_has_learned_nothing_is_named_first(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str], gain: float, init: str, noted: bool
) -> None:
    shutil.copytree(model, tmp_path / "run")
    file = tmp_path / "run" / "metrics.jsonl"
    *before, last = map(json.loads, file.read_text().splitlines())
    auc = {"": 0.5 + gain, "_gain": gain, "_gain_low": gain - 0.01, "_gain_high": gain + 0.01, "_gain_documents": 9}
    last |= {f"discriminator_auc{part}": value for part, value in auc.items()} | {"discriminator_recall": 0.5}
    last |= {"always_original_auc": 0.5, "unigram_auc": 0.4}
    file.write_text("".join(json.dumps(record) + "\n" for record in (*before, last)))
    path = write_finetuning(
        tmp_path, tmp_path / "run", train={"epochs": 1, "batch_size": 6, "precision": "fp32"}, init=init
    )
    finetune(path, [], tmp_path / "out", "cpu")
    opening = capsys.readouterr().err.partition("\nstep ")[0]
    assert ("has not learned to detect" in opening) == noted


def test_labels_have_the_order_of_the_dataset_if_it_has_one(tmp_path: Path, model: Path) -> None:
    loaded = load_finetuning(write_finetuning(tmp_path, model))
    dataset: Any = open_dataset(loaded)
    for labels, expected in (
        ((), ["cat", "dogs"]),
        (("dogs", "emus", "cat"), ["dogs", "cat"]),
        (("dogs",), ["cat", "dogs"]),
    ):
        dataset.labels = labels
        assert read_examples(loaded, dataset).facts["labels"] == expected


def test_the_metrics_are_those_of_the_task_as_it_is_chosen(tmp_path: Path, model: Path) -> None:
    section = {"type": "conll", "train": "train.txt", "validation": "validation.txt", "scheme": "plain"}
    path = write_finetuning(tmp_path, model, task={"type": "token_classification", "scheme": "plain"}, dataset=section)
    assert list(declared(load_finetuning(path)))[:3] == ["accuracy", "constant_accuracy", "dropped_words"]
    assert "token_classification has no metric 'f1'" in refusal(path, "evaluate.metric=f1")


@pytest.mark.parametrize(
    ("override", "key", "reason"),
    [
        ("data.max_length=32", "data.max_length", "32 is above the 16 positions of"),
        ("evaluate.metric=acuracy", "evaluate.metric", "Did you mean 'accuracy'"),
        ("dataset={type: line_pairs, folder: texts}", "dataset.type", "yields PairExample"),
        ("model=nowhere/at-all/there", "model", "does not exist"),
        ("seeds=[1, 1]", "seeds", "1 appears twice"),
        ("evaluate={select: best, every: null}", "evaluate.select", "set evaluate.every"),
        ("train.micro_batch_size=4", "train.micro_batch_size", "must divide batch_size 6"),
        ("schedules.learning_rate.warmup_steps=100", "schedules.learning_rate", "does not fit into 12 steps"),
        ("dataset.folder=empty", "dataset", "has no .txt files"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_key(tmp_path: Path, model: Path, override, key, reason) -> None:
    said = refusal(write_finetuning(tmp_path, model), override)
    assert f"{key}: " in said
    assert reason in said


def test_splits_that_cannot_be_learned_from_are_refused_with_all_mistakes(tmp_path: Path, model: Path) -> None:
    path, texts = write_finetuning(tmp_path, model), tmp_path / "texts"
    (texts / "test.txt").write_text("")
    (texts / "validation.txt").write_text("cat\tthe cat\n\tthe cat\n")
    said = refusal(path)
    assert "the split test has no examples." in said
    assert f"{texts / 'validation.txt'}:2: has no label, but others of its split have one" in said
    (texts / "validation.txt").unlink()
    assert "lines has no split validation: it has test, train." in refusal(path)
    write_lines(texts)
    shutil.copy(texts / "test.txt", texts / "validation.txt")
    (texts / "train.txt").write_text("cat\tthe cat\n" * 3)
    said = refusal(path)
    assert "all training examples have the label 'cat': there is nothing to learn." in said
    assert "the examples of validation have no labels" in said
    assert not (tmp_path / "refused").exists()
