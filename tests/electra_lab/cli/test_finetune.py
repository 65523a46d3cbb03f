"""electra-lab finetune, and what resume, check, report and schema do with fine-tunings."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from electra_lab.jobs import lifecycle
from registry.errors import Interrupted
from tests.electra_lab.cli.conftest import Lab
from tests.electra_lab.jobs.finetuning.small import pretrained, write_finetuning
from tests.pages import Page

QUICK = {"train": {"epochs": 1, "batch_size": 12, "precision": "fp32"}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pretrained(tmp_path_factory.mktemp("pretrained"))


def test_a_dry_run_says_how_long_it_takes_and_writes_nothing(lab: Lab, tmp_path: Path, model: Path) -> None:
    file = write_finetuning(tmp_path, model, **QUICK)
    before = sorted(tmp_path.rglob("*"))
    code, out, _ = lab("finetune", file, "--dry-run", "--set", "seeds=[4, 5]", "--out", tmp_path / "out")
    assert code == 0
    assert re.search(r"^  time +about .* s.* per step on average; .*; 2 seeds$", out, re.MULTILINE)
    assert "seed 4: " in out
    assert "(--no-trial)" in lab("finetune", file, "--dry-run", "--no-trial")[1]
    assert sorted(tmp_path.rglob("*")) == before


def test_prints_the_folder_and_takes_another_model(lab: Lab, tmp_path: Path, model: Path) -> None:
    file = write_finetuning(tmp_path, Path("nowhere"), **QUICK)
    code, out, err = lab("finetune", file, "--model", model, "--set", "seeds=[4]", "--out", tmp_path / "out")
    assert (code, out) == (0, f"{tmp_path / 'out'}\n")
    assert "animals, seed 4: 2 steps of 12 rows on cpu, fp32" in err
    assert f"report {tmp_path / 'out' / 'report.html'}" in err
    began = json.loads((tmp_path / "out" / "seed-4" / "provenance.json").read_text())
    assert began["init"]["discriminator"]["source"] == str(model)


@pytest.mark.parametrize(
    ("sections", "code", "reason"),
    [
        ({"task": {"type": "text_clasification"}}, 2, "Did you mean 'text_classification'?"),
        ({"model": "not/here/at/all"}, 3, "does not exist"),
        ({"dataset": {"type": "lines", "folder": "not_here"}}, 3, "has no .txt files"),
    ],
)
def test_mistakes_have_the_documented_exit_code(lab, tmp_path, model, sections, code, reason) -> None:
    given: dict[str, Any] = {**QUICK, **sections}
    file = write_finetuning(tmp_path, given.pop("model", model), **given)
    found, out, err = lab("finetune", file)
    assert (found, out) == (code, "")
    assert reason in err
    assert err.startswith(f"{file}:")
    assert not list(Path.cwd().iterdir())


SST = "sentence\tlabel\n" + "the cat sat\t1\nthe dogs sat\t0\n" * 6
TAGS = "the DT B-NP\ncat NN I-NP\n\nit PP B-NP\nsat VB B-VP\n\n" * 4
WRONG_ANSWER = {"id": "q", "question": "who?", "answers": [{"text": "dog", "answer_start": 4}]}
SQUAD = json.dumps(
    {"data": [{"title": "t", "paragraphs": [{"context": "the cat sat", "qas": [WRONG_ANSWER]}]}]}, indent=0
)
CONLL = {"type": "conll", "train": "data/train.txt", "validation": "data/test.txt"}
TABLE = {"type": "table", "train": "data/train.csv", "validation": "data/dev.csv"}
CSV = "text,label\n" + "the cat,a\nthe dogs,b\n" * 4


GLUE = {"type": "glue", "name": "SST-2", "folder": "data"}
SQUADS = {"type": "squad", "train": "data/train.json", "validation": "data/dev.json"}
TEXTS, TAGGING, ANSWERS = "text_classification", "token_classification", "question_answering"
SST_BYTES = SST.encode() + b"caf\xe9\t1\n"


@pytest.mark.parametrize(
    ("task", "dataset", "files", "reason"),
    [
        (TEXTS, GLUE, {"train.tsv": f"{SST}one column\n", "dev.tsv": SST}, "train.tsv:14: has 1 column, not 2"),
        (TEXTS, GLUE, {"train.tsv": SST, "dev.tsv": SST_BYTES}, "dev.tsv:14: byte"),
        (TEXTS, TABLE, {"train.csv": CSV, "dev.csv": f"{CSV}the cat,\n"}, "dev.csv:10: has no label"),
        (TEXTS, TABLE, {"train.csv": "", "dev.csv": CSV}, "train.csv"),
        (TEXTS, TABLE, {"train.csv": CSV, "dev.csv": "text\nthe cat\n"}, "dev.csv:1: "),
        (TAGGING, CONLL, {"train.txt": TAGS, "test.txt": f"{TAGS}one\n"}, "test.txt:"),
        (TAGGING, CONLL, {"train.txt": TAGS, "test.txt": "the DT XX\n"}, "test.txt:1: the tag 'XX'"),
        (TAGGING, CONLL, {"train.txt": "", "test.txt": TAGS}, "train.txt"),
        (ANSWERS, SQUADS, {"train.json": SQUAD, "dev.json": SQUAD.replace("dog", "cat")}, "answer 'dog' .* 4"),
        (ANSWERS, SQUADS, {"train.json": SQUAD[:40], "dev.json": SQUAD.replace("dog", "cat")}, "train.json:"),
        ("minimal_pairs", {"type": "blimp", "folder": "data"}, {"a.jsonl": '{"sentence_good": 3}\n'}, "a.jsonl:1"),
    ],
)
def test_examples_that_are_wrong_are_named_by_file_and_line(lab, tmp_path, model, task, dataset, files, reason) -> None:
    (tmp_path / "data").mkdir()
    for name, content in files.items():
        (tmp_path / "data" / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    trains = {} if task == "minimal_pairs" else QUICK
    given: dict[str, Any] = {"task": {"type": task}, "dataset": dataset, "imports": None, "train": None,
                             "evaluate": None, "checkpoint": None, **trains}  # fmt: skip
    file = write_finetuning(tmp_path, model, **given)
    code, out, err = lab("finetune", file, "--out", tmp_path / "out")
    assert (code, out) == (3, "")
    assert re.search(reason, err)
    assert f"{file}:" in err
    assert len(err.strip().splitlines()) == 1, "one sentence, on one line"


def test_an_interruption_says_how_to_resume(lab, tmp_path: Path, model: Path, monkeypatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise Interrupted("stopped and saved")

    file = write_finetuning(tmp_path, model, **QUICK)
    with monkeypatch.context() as patched:
        patched.setattr(lifecycle, "consume_records", stopped)
        assert lab("finetune", file, "--out", tmp_path / "out")[0] == 130
    code, out, _ = lab("resume", tmp_path / "out")
    assert (code, out) == (0, f"{tmp_path / 'out'}\n")
    assert (tmp_path / "out" / "seed-0" / "results.json").is_file()


def test_a_seed_is_not_taken_for_a_pre_training_run(lab: Lab, tmp_path: Path, model: Path) -> None:
    lab("finetune", write_finetuning(tmp_path, model, **QUICK), "--out", tmp_path / "out")
    code, out, err = lab("report", tmp_path / "out" / "seed-0")
    assert (code, out) == (2, "")
    assert "is a seed of a fine-tuning, not a pre-training run" in err


def test_other_commands_name_the_right_one(lab: Lab, tmp_path: Path, model: Path) -> None:
    file = write_finetuning(tmp_path, model)
    assert "--best" in lab.fails(2, "finetune", file, "--best", "--set", "step=3")
    assert lab("run", file)[2] == f"{file}: is a fine-tuning. To run it: electra-lab finetune {file}\n"
    experiment = model.parent / "tiny.yaml"
    assert lab("finetune", experiment)[2].endswith(f"To run an experiment: electra-lab run {experiment}\n")


def test_check_prints_the_complete_file_with_origins(lab: Lab, tmp_path: Path, model: Path) -> None:
    file = write_finetuning(tmp_path, model)
    code, out, err = lab("check", file)
    assert (code, err.count("\n"), "task: {head: transformers}" in err) == (0, 1, True)
    assert lab("check", file, "--set", "task.head=transformers")[::2] == (0, "")
    found = yaml.safe_load(out)
    assert found["train"]["epochs"] == 3
    assert found["train"]["layer_decay"] == 0.8
    lines = {line.split(":")[0].strip(): line.rpartition("#")[2].strip() for line in out.splitlines() if "#" in line}
    assert lines["layer_decay"] == "default"
    assert lines["epochs"].startswith(f"{file}:")
    shutil.rmtree(tmp_path / "texts")
    code, out, err = lab("check", file)
    assert code == 0
    assert "note: " in err
    assert "has no .txt files. A run would stop there." in err


def test_check_refuses_a_model_that_is_damaged(lab: Lab, tmp_path: Path, model: Path) -> None:
    exported = tmp_path / "exported"
    assert lab("export", model, exported)[0] == 0
    (exported / "discriminator" / "model.safetensors").write_bytes(b"damaged")
    code, out, err = lab("check", write_finetuning(tmp_path, exported))
    assert (code, out) == (3, ""), err
    code, _, err = lab("check", write_finetuning(tmp_path, Path("not/here")))
    assert (code, "note: " in err) == (0, True)


def test_report_writes_the_page_again(lab: Lab, tmp_path: Path, model: Path) -> None:
    file = write_finetuning(tmp_path, model, **QUICK, seeds=[0, 1])
    lab("finetune", file, "--out", tmp_path / "out")
    page = tmp_path / "out" / "report.html"
    before = page.read_bytes()
    page.unlink()
    code, out, _ = lab("report", tmp_path / "out")
    assert (code, out) == (0, f"{page}\n")
    assert page.read_bytes() == before


def test_the_page_shows_every_seed_and_the_errors(lab: Lab, tmp_path: Path, model: Path) -> None:
    file = write_finetuning(tmp_path, model, seeds=[0, 1])
    lab("finetune", file, "--out", tmp_path / "out")
    page = Page(tmp_path / "out" / "report.html")
    rows = page.table("Results on validation")
    results = json.loads((tmp_path / "out" / "results.json").read_text())["validation"]
    accuracy = next(row for row in rows if row[0] == "accuracy")
    values = results["accuracy"]["values"]
    assert accuracy[1] == f"{results['accuracy']['median']:.3f}"
    assert accuracy[5:7] == [f"{values['0']:.3f}", f"{values['1']:.3f}"]
    assert "Wrong predictions" in page.text
    assert "The examples have no labels" in page.text
