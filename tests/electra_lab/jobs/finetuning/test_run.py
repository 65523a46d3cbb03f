"""Fine-tuning from a file to its folder: results, seeds, resuming."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from electra_lab.config.load import load_finetuning
from electra_lab.jobs import lifecycle
from electra_lab.jobs.finetuning.experiment import assemble
from electra_lab.jobs.finetuning.run import finetune, resume
from electra_lab.model.flops import MATRIX_PRODUCTS
from electra_lab.storage.finetuning_folder import FinetuningFolder
from registry.errors import ConfigError, DataError, Interrupted
from tests.electra_lab.jobs.finetuning.small import predictions, pretrained, refusal, write_finetuning, write_lines

CUDA = (pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"))
WAYS = [("fp32", 1e-3), ("bf16", 0.03)]
TIMES = ("seconds", "tokens_per_second", "peak_memory_bytes")


def records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    newest = max((folder / "checkpoints").glob("step-*"))
    return load_file(newest / "state.safetensors")


@pytest.mark.parametrize(
    ("device", "precision", "bound"),
    [("cpu", "bf16", 0.03), *(pytest.param("cuda", *rest, marks=CUDA) for rest in WAYS)],
)
def test_the_losses_of_every_device_and_precision(tmp_path: Path, device: str, precision: str, bound: float) -> None:
    """Beside those in fp32 on a CPU, of rows of several lengths. Without dropout, whose draws depend on the device."""
    still = "{type: bert, dim: 16, depth: 1, heads: 2, dropout: 0.0}"
    model = pretrained(tmp_path / "still", discriminator=still, embedding="{dim: 8, max_length: 16, dropout: 0.0}")
    losses = []
    for where, how in (("cpu", "fp32"), (device, precision)):
        file = write_finetuning(tmp_path, model, seeds=[0], data={"max_length": 16})
        overrides = [f"train.precision={how}", "train.log_every=1", "train.dropout=0.0"]
        out = finetune(file, overrides, tmp_path / where / how, where)
        losses.append([record["loss"] for record in records(out / "seed-0") if record["split"] == "train"])
    assert losses[1] == pytest.approx(losses[0], abs=bound)
    assert max(losses[0]) - min(losses[0]) > 5 * bound  # training changes them by more


def test_leaves_all_results_of_every_seed(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = finetune(write_finetuning(tmp_path, model, seeds=[3, 5]), [], tmp_path / "out", "cpu")
    held = FinetuningFolder(folder)
    assert held.seeds() == [3, 5]
    for seed in (3, 5):
        found = predictions(folder / f"seed-{seed}", "validation")
        right = sum(each["prediction"] == each["label"] for each in found) / len(found)
        results = held.results(seed)
        assert results.step == 12  # 3 epochs of 24 rows, 6 at a time
        assert results.splits["validation"].metrics["accuracy"] == right
        assert [each["correct"] for each in found] == [each["prediction"] == each["label"] for each in found]
        assert results.splits["test"].metrics == {}
        tested = predictions(folder / f"seed-{seed}", "test")
        assert [each["id"] for each in tested] == [str(n) for n in range(1, 7)]
        text = (folder / f"seed-{seed}" / "submission" / "answers.txt").read_text()
        assert text.split() == [each["prediction"] for each in tested]
        last = [r for r in records(folder / f"seed-{seed}") if r["split"] == "validation"]
        assert [r["step"] for r in last] == [4, 8, 12]
        assert last[-1]["accuracy"] == right
    values = held.values("validation", "accuracy")
    summary = json.loads((folder / "results.json").read_text())["validation"]["accuracy"]
    assert summary["median"] == summary["mean"] == sum(values.values()) / 2
    assert summary["values"] == {"3": values[3], "5": values[5]}
    assert (folder / "report.html").stat().st_size > 1000
    said = capsys.readouterr().err
    assert "on validation, 2 seeds" in said
    assert "on test: no labels" in said


def test_it_learns(tmp_path: Path, model: Path) -> None:
    path = write_finetuning(tmp_path, model)
    overrides = ["train.epochs=20", "train.layer_decay=1.0", "train.learning_rate=1e-2"]
    folder = finetune(path, overrides, tmp_path / "out", "cpu")
    assert FinetuningFolder(folder).values("validation", "accuracy")[0] == 1.0


def test_a_resumed_fine_tuning_is_the_uninterrupted_one(tmp_path: Path, model: Path, monkeypatch) -> None:
    path = write_finetuning(tmp_path, model, seeds=[0, 1])
    whole = finetune(path, [], tmp_path / "whole", "cpu")
    train, calls = lifecycle.train, []

    def stopping(*given: Any, **named: Any) -> Any:
        calls.append(1)
        for record in train(*given, **named):
            if len(calls) == 2 and record.step == 7 and not record.values:
                os.kill(os.getpid(), signal.SIGINT)
            yield record

    monkeypatch.setattr(lifecycle, "train", stopping)
    with pytest.raises(Interrupted, match=f"after step 7. Resume with: electra-lab resume {tmp_path / 'cut'}$"):
        finetune(path, [], tmp_path / "cut", "cpu")
    monkeypatch.undo()
    finished = tmp_path / "cut" / "seed-0" / "results.json"
    before = finished.stat().st_mtime_ns
    assert not (tmp_path / "cut" / "seed-1" / "results.json").exists()
    assert resume(tmp_path / "cut", "cpu") == tmp_path / "cut"
    assert finished.stat().st_mtime_ns == before
    for seed in ("seed-0", "seed-1"):
        assert records(tmp_path / "cut" / seed) == records(whole / seed)
        for split in ("validation", "test"):
            assert predictions(tmp_path / "cut" / seed, split) == predictions(whole / seed, split)
    assert (tmp_path / "cut" / "results.json").read_text() == (whole / "results.json").read_text()


def _interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_random_weights_are_drawn_by_the_seed_and_others_are_those_of_the_model(tmp_path: Path, model: Path) -> None:
    """At a rate of next to nothing, what is saved is what it began with."""
    path = write_finetuning(tmp_path, model)
    slow = ["train.learning_rate=1e-30", "train.epochs=0.3", "evaluate.every=null"]
    trained = load_file(max((model / "checkpoints").glob("step-*")) / "state.safetensors")
    name, own = "network.backbone.layers.0.query.weight", "discriminator.backbone.layers.0.query.weight"
    found = {}
    for init in ("pretrained", "random"):
        folder = finetune(path, [*slow, f"init={init}", "seeds=[0, 1]"], tmp_path / init, "cpu")
        found[init] = [weights(folder / f"seed-{seed}")[f"model.{name}"] for seed in (0, 1)]
    assert all(torch.equal(each, trained[f"model.{own}"]) for each in found["pretrained"])
    assert not torch.equal(*found["random"])
    assert not any(torch.equal(each, trained[f"model.{own}"]) for each in found["random"])
    again = finetune(path, [*slow, "init=random", "seeds=[1]"], tmp_path / "again", "cpu")
    assert torch.equal(weights(again / "seed-1")[f"model.{name}"], found["random"][1])
    heads = [weights(folder) for folder in (tmp_path / "random" / "seed-0", *sorted(tmp_path.glob("*/seed-1")))]
    first, *others = (head["model.head.out.weight"] for head in heads)
    assert first.shape == (2, 16)
    assert len({tuple(other.flatten().tolist()) for other in others}) == 1  # by the seed alone
    limit = (6 / (2 + 16)) ** 0.5  # Glorot and Bengio (2010)
    for head in (first, others[0]):
        assert not torch.equal(first, others[0])
        assert 0.9 * limit < float(head.abs().max()) <= limit
        assert float(head.std()) == pytest.approx(limit / 3**0.5, rel=0.2)
    assert all(float(head["model.head.out.bias"].abs().max()) < 1e-20 for head in heads)


def test_the_size_of_the_batch_of_evaluation_does_not_matter(tmp_path: Path) -> None:
    """Though the padding that texts get from their neighbours depends on it, and a Reformer hashes by the length."""
    sections = {"discriminator": "{type: reformer, dim: 16, depth: 2, heads: 2, bucket_size: 2}"}
    model = pretrained(tmp_path / "model", **sections)
    write_lines(tmp_path / "texts")
    lines = "".join(f"{'cat' if n % 3 else 'dogs'}\t{'the cat saw ' * (n % 4)}{n}\n" for n in range(12))
    (tmp_path / "texts" / "validation.txt").write_text(lines)
    path, found = write_finetuning(tmp_path, model), []
    for size in (1, 5, 12):
        overrides = [f"evaluate.batch_size={size}", "train.learning_rate=1e-2"]
        folder = finetune(path, overrides, tmp_path / f"by-{size}", "cpu")
        found.append([each["certainty"] for each in predictions(folder / "seed-0", "validation")])
    assert max(found[0]) > min(found[0]) + 1e-3
    assert found[1] == pytest.approx(found[0], abs=1e-5)
    assert found[2] == pytest.approx(found[0], abs=1e-5)


def test_what_is_assembled_follows_the_file_and_its_examples(tmp_path: Path, model: Path) -> None:
    path, given = write_finetuning(tmp_path, model), ["train.dropout=0.3", "data.train_examples=10"]
    texts = tmp_path / "texts" / "train.txt"
    texts.write_text(texts.read_text().replace(" sat on the mat", "", 12))
    built = assemble(load_finetuning(path, given), 0, torch.device("cpu"))
    assert built.model.head.dropout.p == 0.3
    drawn = [int(example.id) for example in built.splits["train"].examples]
    assert drawn == sorted(set(drawn))
    assert len(drawn) == 10 < max(drawn)
    rows = built.splits["train"].batches
    mean = round(rows.tokens / 10)
    assert mean < rows.length
    assert built.settings.flops.per_step == 6 * 3 * MATRIX_PRODUCTS.forward(built.model.network, mean, 0)


def test_a_probe_trains_its_own_layers_alone(tmp_path: Path, model: Path) -> None:
    folder = finetune(write_finetuning(tmp_path, model), ["train.frozen=true"], tmp_path / "out", "cpu")
    trained = load_file(max((model / "checkpoints").glob("step-*")) / "state.safetensors")
    saved = weights(folder / "seed-0")
    own = {name: tensor for name, tensor in saved.items() if name.startswith("model.network.")}
    assert own
    for name, tensor in own.items():
        names = [name.replace("network", each, 1) for each in ("discriminator", "generator")]  # which share embeddings
        assert torch.equal(tensor, next(trained[each] for each in names if each in trained)), name
    assert not any(name.startswith("optimizer.") and "network" in name for name in saved)


def test_part_of_the_examples_is_drawn_by_the_seed(tmp_path: Path, model: Path) -> None:
    path = write_finetuning(tmp_path, model, seeds=[0, 1])
    folder = finetune(path, ["data.train_examples=10", "train.batch_size=5"], tmp_path / "out", "cpu")
    began = [json.loads((folder / f"seed-{n}" / "provenance.json").read_text()) for n in (0, 1)]
    assert [each["data"]["documents"]["train"] for each in began] == [10, 10]
    assert [each["steps"] for each in began] == [6, 6]
    assert began[0]["data"]["tokens"]["train"] != began[1]["data"]["tokens"]["train"]


def test_a_label_that_training_has_not_seen_is_an_error_with_a_note(tmp_path: Path, model: Path, capsys) -> None:
    path = write_finetuning(tmp_path, model)
    file = tmp_path / "texts" / "validation.txt"
    file.write_text(file.read_text() + "cst\tthe cat sat\n" * 4)
    folder = finetune(path, [], tmp_path / "out", "cpu")
    opening, _, closing = capsys.readouterr().err.partition("\nstep ")
    assert "25.0% of the labels of validation are in no training example" in opening
    assert "unseen labels: validation 25.0%" in closing
    assert [each["correct"] for each in predictions(folder / "seed-0", "validation")[12:]] == [False] * 4
    assert "unseen labels" in (folder / "report.html").read_text()


TABLE = {"type": "table", "train": "train.csv", "validation": "dev.csv"}
ROWS = "".join(f"the {animal} sat,{animal}\n" for animal in ("cat", "dogs") * 9)


def test_bad_rows_of_all_splits_are_named_before_anything_is_written(tmp_path: Path, model: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\nthe cat,\n" + ROWS + ",cat\na,b,c\n")
    (tmp_path / "dev.csv").write_text("text,label\n" + ROWS + "the cat, \n")
    said = refusal(write_finetuning(tmp_path, model, dataset=TABLE))
    places = [f"{tmp_path / name}:{line}: " for name, line in (("train.csv", 2), ("train.csv", 21), ("train.csv", 22),
                                                             ("dev.csv", 20))]  # fmt: skip
    assert [place for place in places if place in said] == places
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


def test_a_folder_that_was_begun_before_a_key_existed_is_continued(tmp_path: Path, model: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\n" + ROWS)
    (tmp_path / "dev.csv").write_text("text,label\n" + ROWS)
    path = write_finetuning(tmp_path, model, dataset=TABLE)
    folder = finetune(path, ["train.epochs=1"], tmp_path / "out", "cpu")
    file, kept = folder / "seed-0" / "provenance.json", folder / "finetuning.yaml"
    began = json.loads(file.read_text())
    assert began["config"]["dataset"].pop("on_error") == "stop"
    file.write_text(json.dumps({**began, "config_sha256": "of the older file"}))
    kept.write_text(kept.read_text().replace("  on_error: stop\n", ""))
    with pytest.raises(ConfigError, match=r"dataset\.on_error"):
        resume(folder, "cpu", ["dataset.on_error=skip"])
    resume(folder, "cpu", ["seeds=[0, 1]"])
    assert FinetuningFolder(folder).values("validation", "accuracy").keys() == {0, 1}


def test_labels_are_learned_from_all_examples_not_from_the_drawn_ones(tmp_path: Path, model: Path) -> None:
    path = write_finetuning(tmp_path, model)
    file = tmp_path / "texts" / "train.txt"
    file.write_text(file.read_text() + "zebra\tthe zebra sat\n")
    given = load_finetuning(path, ["data.train_examples=6", "train.batch_size=6", "evaluate.every=null"])
    built = assemble(given, 0, torch.device("cpu"))
    drawn = {example.label for example in built.splits["train"].examples}
    assert "zebra" not in drawn
    assert built.facts["labels"] == ["cat", "dogs", "zebra"]
    assert built.model.head.out.out_features == 3  # type: ignore[union-attr]


def test_seeds_may_be_added_if_nothing_else_has_changed(tmp_path: Path, model: Path) -> None:
    """Numbers of one folder go together: a finished seed is not mixed with seeds of other settings or examples."""
    path = write_finetuning(tmp_path, model)
    folder = finetune(path, ["seeds=[0]"], tmp_path / "out", "cpu")
    file, before = folder / "finetuning.yaml", (folder / "finetuning.yaml").read_text()
    file.write_text(before.replace("seeds:\n- 0\n", "seeds:\n- 0\n- 1\n"))
    resume(folder, "cpu")
    assert FinetuningFolder(folder).values("validation", "accuracy").keys() == {0, 1}
    file.write_text(before.replace("epochs: 3.0", "epochs: 1.0"))
    with pytest.raises(ConfigError, match=r"finetuning.yaml: these values .*: train.epochs 3.0 -> 1.0"):
        resume(folder, "cpu")
    file.write_text(before.replace("seeds:\n- 0\n", "seeds:\n- 0\n- 2\n"))
    train = tmp_path / "texts" / "train.txt"
    train.write_text(train.read_text() + "cat\tthe cat sat\n")
    with pytest.raises(DataError, match="seed-0: the examples have changed since the run began"):
        resume(folder, "cpu")
    assert not (folder / "seed-2").exists()


def test_an_epoch_is_a_number_of_rows(tmp_path: Path, model: Path) -> None:
    """Batches are always full and go on into the next epoch, so a last small one must not count as a whole one."""
    path = write_finetuning(tmp_path, model)
    for number, epochs, steps in ((7, 3, 4), (7, 1, 1), (9, 2, 3)):  # batches of 6
        given = [f"data.train_examples={number}", f"train.epochs={epochs}", "evaluate.every=null"]
        assert assemble(load_finetuning(path, given), 0, torch.device("cpu")).settings.steps == steps


@pytest.mark.parametrize("select", ["last", "best"])
def test_validation_examples_without_labels_are_refused_before_training(
    tmp_path: Path, model: Path, select: str
) -> None:
    path = write_finetuning(tmp_path, model, evaluate={"every": 4, "select": select})
    file = tmp_path / "texts" / "validation.txt"
    file.write_text((tmp_path / "texts" / "test.txt").read_text())
    assert "dataset: the examples of validation have no labels" in refusal(path)
    file.write_text("cat\tthe cat\n\tthe cat\n")
    with pytest.raises(DataError, match=f"{file}:2: has no label, but others of its split have one"):
        assemble(load_finetuning(path), 0, torch.device("cpu"))


def test_what_rows_lack_is_told_of_every_split(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_finetuning(tmp_path, model, train={"epochs": 1, "batch_size": 6, "precision": "fp32"})
    for split, longer in (("train", 6), ("test", 3)):
        file = tmp_path / "texts" / f"{split}.txt"
        lines = file.read_text().splitlines()
        file.write_text("".join(f"{each}{' and a mat' * 20 * (n < longer)}\n" for n, each in enumerate(lines)))
    folder = finetune(path, [], tmp_path / "out", "cpu")
    results = FinetuningFolder(folder).results(0)
    assert results.lost == {"cut_examples": {"train": 0.25, "validation": 0.0, "test": 0.5}}
    said = "cut examples: train 25.0%, validation 0.0%, test 50.0%"
    assert said in capsys.readouterr().err
    assert said.split(": ")[1] in (folder / "report.html").read_text()


def test_the_metrics_are_those_of_the_task_as_it_is_chosen(tmp_path: Path, model: Path) -> None:
    section = {"type": "conll", "train": "train.txt", "validation": "validation.txt", "scheme": "plain"}
    for name in ("train.txt", "validation.txt"):
        (tmp_path / name).write_text("the DT\ncat NN\n\nit PP\nsat VB\n\n" * 6)
    path = write_finetuning(tmp_path, model, task={"type": "token_classification", "scheme": "plain"}, dataset=section)
    folder = finetune(path, ["train.epochs=1"], tmp_path / "out", "cpu")
    table = json.loads((folder / "results.json").read_text())["validation"]
    assert list(table) == ["accuracy", "dropped_words"]
    assert "token_classification has no metric 'f1'" in refusal(path, "evaluate.metric=f1")


@pytest.mark.parametrize(
    ("override", "key", "reason"),
    [
        ("data.max_length=32", "data.max_length", "32 is above the 16 positions of"),
        ("evaluate.metric=acuracy", "evaluate.metric", "text_classification has no metric 'acuracy'. Did you mean"),
        (
            "dataset={type: line_pairs, folder: texts}",
            "dataset.type",
            "yields PairExample, but the task text_classification takes TextEx",
        ),
        ("model=nowhere/at-all/there", "model", "does not exist"),
        ("seeds=[1, 1]", "seeds", "1 appears twice"),
        (
            "evaluate={select: best, every: null}",
            "evaluate.select",
            "best needs several evaluations; set evaluate.every",
        ),
        ("train.micro_batch_size=4", "train.micro_batch_size", "must divide batch_size 6"),
        ("schedules.learning_rate.warmup_steps=100", "schedules.learning_rate", "does not fit into 12 steps"),
        ("dataset.folder=empty", "dataset", "has no .txt files"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_key(
    tmp_path: Path, model: Path, override: str, key: str, reason: str
) -> None:
    said = refusal(write_finetuning(tmp_path, model), override)
    assert f"{key}: " in said
    assert reason in said
    assert "Traceback" not in said


def test_splits_that_cannot_be_learned_from_are_refused(tmp_path: Path, model: Path) -> None:
    path, texts = write_finetuning(tmp_path, model), tmp_path / "texts"
    (texts / "test.txt").write_text("")
    assert "the split test has no examples." in refusal(path)
    (texts / "validation.txt").write_text("cat\tthe cat\n\tthe cat\n")  # the other mistake is named at once
    said = refusal(path)
    assert "the split test has no examples." in said
    assert f"{texts / 'validation.txt'}:2" in said
    (texts / "validation.txt").unlink()
    assert "lines has no split validation: it has test, train." in refusal(path)
    write_lines(texts)
    (texts / "train.txt").write_text("cat\tthe cat\n" * 3)
    assert "all training examples have the label 'cat': there is nothing to learn." in refusal(path)


def test_the_generator_can_be_fine_tuned_too(tmp_path: Path, model: Path) -> None:
    folder = finetune(write_finetuning(tmp_path, model), ["network=generator"], tmp_path / "out", "cpu")
    began = json.loads((folder / "seed-0" / "provenance.json").read_text())
    assert began["init"].keys() == {"generator"}
    assert weights(folder / "seed-0")["model.network.backbone.layers.0.query.weight"].shape == (8, 8)
