"""electra-lab finetune, and resume, check, report and schema for fine-tunings."""

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
    assert (code, "seed 4: " in out) == (0, True)
    assert re.search(r"^  time +about .* s.* per step on average; .*; 2 seeds$", out, re.MULTILINE)
    assert "(--no-trial)" in lab("finetune", file, "--dry-run", "--no-trial")[1]
    assert sorted(tmp_path.rglob("*")) == before


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
    err = lab.fails(code, "finetune", file)
    assert (err.startswith(f"{file}:"), reason in err) == (True, True)
    assert not list(Path.cwd().iterdir())


SST = "sentence\tlabel\n" + "the cat sat\t1\nthe dogs sat\t0\n" * 6
TAGS = "the DT B-NP\ncat NN I-NP\n\nit PP B-NP\nsat VB B-VP\n\n" * 4
CSV = "text,label\n" + "the cat,a\nthe dogs,b\n" * 4
ANSWER = '{"id": "q", "question": "who?", "answers": [{"text": "dog", "answer_start": 4}]}'
SQUAD = '{"data": [{"title": "t", "paragraphs": [{"context": "the cat sat", "qas": [ANSWER]}]}]}'.replace(
    "ANSWER", ANSWER
)
GLUE = {"type": "glue", "name": "SST-2", "folder": "data"}
TABLE = {"type": "table", "train": "data/train.csv", "validation": "data/dev.csv"}
CONLL = {"type": "conll", "train": "data/train.txt", "validation": "data/test.txt"}
SQUADS = {"type": "squad", "train": "data/train.json", "validation": "data/dev.json"}
BLIMP = {"type": "blimp", "folder": "data"}


@pytest.mark.parametrize(
    ("task", "dataset", "files", "reason"),
    [
        ("text_classification", GLUE, {"train.tsv": f"{SST}one column\n", "dev.tsv": SST}, "train.tsv:14: "),
        ("text_classification", TABLE, {"train.csv": CSV, "dev.csv": f"{CSV}the cat,\n"}, "dev.csv:10: "),
        ("text_classification", TABLE, {"train.csv": "", "dev.csv": CSV}, "train.csv"),
        ("token_classification", CONLL, {"train.txt": TAGS, "test.txt": "the DT XX\n"}, "test.txt:1: the tag 'XX'"),
        ("question_answering", SQUADS, {"train.json": SQUAD, "dev.json": SQUAD.replace("dog", "cat")}, "'dog' .* 4"),
        ("minimal_pairs", BLIMP, {"a.jsonl": '{"sentence_good": 3}\n'}, "a.jsonl:1"),
    ],
)
def test_examples_that_are_wrong_are_named_by_file_and_line(lab, tmp_path, model, task, dataset, files, reason) -> None:
    (tmp_path / "data").mkdir()
    for name, content in files.items():
        (tmp_path / "data" / name).write_text(content)
    trains = {"train": None} if task == "minimal_pairs" else QUICK
    given: dict[str, Any] = {"task": {"type": task}, "dataset": dataset, "imports": None, "evaluate": None, **trains}
    file = write_finetuning(tmp_path, model, checkpoint=None, **given)
    err = lab.fails(3, "finetune", file, "--out", tmp_path / "out")
    assert re.search(reason, err)
    assert (f"{file}:" in err, err.count("\n")) == (True, 1)


def test_an_interruption_says_how_to_resume(lab, tmp_path: Path, model: Path, monkeypatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise Interrupted("stopped and saved")

    # The model is that of the command line.
    file, out = write_finetuning(tmp_path, Path("nowhere"), **QUICK), tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(lifecycle, "consume_records", stopped)
        lab.fails(130, "finetune", file, "--model", model, "--set", "seeds=[4]", "--out", out)
    code, said, err = lab("resume", out)
    assert (code, said) == (0, f"{out}\n")
    assert "animals, seed 4: 2 steps of 12 rows on cpu, fp32" in err
    assert f"report {out / 'report.html'}" in err
    assert (out / "seed-4" / "results.json").is_file()
    began = json.loads((out / "seed-4" / "provenance.json").read_text())
    assert began["init"]["discriminator"]["source"] == str(model)
    assert "is a seed of a fine-tuning, not a pre-training run" in lab.fails(2, "report", out / "seed-4")


def test_other_commands_name_the_right_one(lab: Lab, tmp_path: Path, model: Path) -> None:
    file, experiment = write_finetuning(tmp_path, model), model.parent / "tiny.yaml"
    assert "--best" in lab.fails(2, "finetune", file, "--best", "--set", "step=3")
    assert lab.fails(2, "run", file).endswith(f"electra-lab finetune {file}\n")
    assert lab.fails(2, "finetune", experiment).endswith(f"electra-lab run {experiment}\n")


def test_check_prints_the_complete_file_with_origins(lab: Lab, tmp_path: Path, model: Path) -> None:
    file = write_finetuning(tmp_path, model)
    code, out, err = lab("check", file)
    assert (code, err.count("\n"), "task: {head: transformers}" in err) == (0, 1, True)
    assert lab("check", file, "--set", "task.head=transformers")[::2] == (0, "")
    found = yaml.safe_load(out)["train"]
    assert (found["epochs"], found["layer_decay"]) == (3, 0.8)
    lines = {line.split(":")[0].strip(): line.rpartition("#")[2].strip() for line in out.splitlines() if "#" in line}
    assert (lines["layer_decay"], lines["epochs"].partition(":")[0]) == ("default", str(file))
    shutil.rmtree(tmp_path / "texts")
    code, _, err = lab("check", file)
    assert (code, "note: " in err, "has no .txt files. A run would stop there." in err) == (0, True, True)


def test_check_refuses_a_model_that_is_damaged(lab: Lab, tmp_path: Path, model: Path) -> None:
    exported = tmp_path / "exported"
    assert lab("export", model, exported)[0] == 0
    (exported / "discriminator" / "model.safetensors").write_bytes(b"damaged")
    lab.fails(3, "check", write_finetuning(tmp_path, exported))
    code, _, err = lab("check", write_finetuning(tmp_path, Path("not/here")))
    assert (code, "note: " in err) == (0, True)


def test_the_page_shows_every_seed_and_the_errors_and_is_written_again(lab: Lab, tmp_path: Path, model: Path) -> None:
    out = tmp_path / "out"
    lab("finetune", write_finetuning(tmp_path, model, seeds=[0, 1]), "--out", out)
    page = Page(out / "report.html")
    accuracy = next(row for row in page.table("Results on validation") if row[0] == "accuracy")
    found = json.loads((out / "results.json").read_text())["validation"]["accuracy"]
    assert accuracy[1] == f"{found['median']:.3f}"
    assert accuracy[5:7] == [f"{found['values'][seed]:.3f}" for seed in ("0", "1")]
    assert "Wrong predictions" in page.text
    assert "The examples have no labels" in page.text
    (out / "report.html").unlink()
    assert lab("report", out)[:2] == (0, f"{out / 'report.html'}\n")
    assert Page(out / "report.html").source == page.source
