"""The output of a fine-tuning: its parts at the start, doubtful examples, its page while it runs, final numbers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch

import registry
from electra_lab.config.load import load_finetuning
from electra_lab.jobs.finetuning.experiment import assemble
from electra_lab.jobs.finetuning.facts import notes, opening
from electra_lab.jobs.finetuning.run import finetune
from electra_lab.presentation.console import Console
from electra_lab.presentation.finetuning_page import closing, write_report
from electra_lab.storage.finetuning_folder import FinetuningFolder
from registry import Answer, QuestionExample, TextExample, WordsExample
from tests.electra_lab.jobs.finetuning.small import write_finetuning
from tests.electra_lab.presentation.finetuned import METRICS, leave_out_curve, scores, write_finetuned, write_seed
from tests.pages import Page


def texts(*lines: tuple[str, str | None]) -> list[TextExample]:
    return [TextExample(text, label=label, place=f"x:{n}") for n, (text, label) in enumerate(lines, start=1)]


def test_copies_of_training_examples_are_counted_with_their_place() -> None:
    train = texts(("The  cat", "a"), ("a dog", "b"), ("x", "a"), ("y", "b"))
    test = texts(("new", "a"), ("the cat", "b"), ("A dog ", "b"), ("X", None))
    [found] = notes({"train": train, "test": test})
    assert found.startswith("3 of 4 examples of test are in train too, 1 of them with another label (the first is x:2)")
    assert not list(notes({"train": train, "test": test[:1]}))


def test_pairs_words_and_questions_are_compared_as_a_whole() -> None:
    pair, other = TextExample("a", "b", "x"), TextExample("a", "c", "y")
    assert len(list(notes({"train": [pair, pair, other, other], "test": [pair]}))) == 1
    assert not list(notes({"train": [pair, pair, other, other], "test": [TextExample("a", "d", "x")]}))
    words = WordsExample(("a", "b"), ("O", "O"))
    assert "another label" in next(iter(notes({"train": [words], "test": [WordsExample(("A", "b"), ("O", "B-X"))]})))
    asked, unknown = (
        QuestionExample("who?", "the cat", (Answer("cat", 4),)),
        QuestionExample("who?", "the cat", labelled=False),
    )
    [found] = notes({"train": [asked], "test": [unknown]})
    assert "another label" not in found


def test_empty_texts_and_odd_labels() -> None:
    train = texts(*[("cat " * n, "a") for n in range(1, 19)], ("cat", "b"), ("dog", "c"))
    copies, empty, rare, most = notes({"train": train, "test": texts((" ", None), ("mat", None))})
    assert copies.startswith("1 examples of train have a copy with another label (")
    assert empty.startswith("1 of 2 examples of test have an empty text (")
    assert "b, c" in rare
    assert "90%" in most
    [rare] = notes({"train": texts(("cat", "10"), ("dog", "b"), ("mat", "9.5"), ("rat", "-2"))})
    assert "-2, 9.5, 10, b" in rare


def test_notes_come_first_and_the_end_names_model_and_command(tmp_path: Path, model: Path, capsys) -> None:
    path = write_finetuning(tmp_path, model, task={"type": "text_classification", "head": "dense"})
    lines = (tmp_path / "texts" / "train.txt").read_text().splitlines(keepends=True)
    (tmp_path / "texts" / "validation.txt").write_text("".join(lines[:3]))
    out = finetune(path, ["train.epochs=1"], tmp_path / "out", "cpu")
    said = capsys.readouterr().err
    assert "note: 3 of 3 examples of validation are in train too" in said.partition("\nanimals, seed 0")[0]
    assert "export        model/" in said.partition("\nstep ")[0]
    assert "frozen" not in said
    assert "checkpoint" not in said
    assert said.splitlines()[-2:] == [
        f"for transformers: {out / 'seed-0' / 'model'}", f"for new text: electra-lab predict {out} TEXT",
    ]  # fmt: skip


def said(folder: Path) -> list[str]:
    return closing(FinetuningFolder(folder), folder / "report.html", 1234.5).splitlines()


def test_one_seed_has_its_number_and_its_meaning(tmp_path: Path) -> None:
    folder = write_finetuned(tmp_path, {3: {"validation": {"accuracy": 0.875, "matthews": -0.5}, "test": {}}})
    assert said(folder) == [
        "",
        "on validation, 1 seed",
        "  metric                seed 3  meaning",
        f"  accuracy               0.875  {METRICS['accuracy']['summary']}",
        f"  Matthews correlation  -0.500  {METRICS['matthews']['summary']}",
        "on test: no labels",
        "",
        f"trained in 1,234 s; report {folder / 'report.html'}",
    ]


def test_several_seeds_have_the_table_of_the_page_and_truncation_follows(tmp_path: Path) -> None:
    lost = {"cut_examples": {"train": 0.25, "test": 0.0}}
    seeds = scores("accuracy", 0.81, 0.86, None, 0.9)
    folder = write_finetuned(tmp_path, seeds, lost=lost, config={"seeds": [0, 1, 2, 3, 7]})
    write_seed(folder, 7, None)
    lines = said(folder)
    assert lines[1] == "on validation, 4 seeds"
    table = [re.split(r"\s{2,}", line.strip()) for line in lines[2:4]]
    assert table == Page(write_report(FinetuningFolder(folder))).table("Results on validation")
    assert lines[4:6] == ["cut examples: train 25.0%, test 0.0%", ""]


def test_the_splits_are_in_their_order(tmp_path: Path) -> None:
    lines = said(write_finetuned(tmp_path, {0: {"validation": {"accuracy": 0.1}, "test": {"accuracy": 0.2}}}))
    assert [line.split()[1] for line in lines[1:7]] == ["validation,", "seed", "0.100", "test,", "seed", "0.200"]


def test_the_opening_names_every_part(tmp_path: Path, model: Path) -> None:
    loaded = load_finetuning(write_finetuning(tmp_path, model), ["train.frozen=true", "data.max_length=12"])
    built = assemble(loaded, 5, torch.device("cpu"))
    lengths = [len(row.tokens) for windows in built.splits["train"].rows for row in windows]
    size = sum(p.numel() for part in (built.model.network, built.model.head) for p in part.parameters())
    step = max(int(path.name.removeprefix("step-")) for path in (model / "checkpoints").glob("step-*"))
    assert opening(loaded, built, 5, tmp_path / "out").splitlines() == [
        f"animals, seed 5: 12 steps of 6 rows on cpu, fp32, into {tmp_path / 'out'}",
        f"  model         discriminator of {model} at step {step}, weights pretrained, frozen; {size:,} parameters",
        f"  weights       discriminator: loaded from {model}",
        "                head: initialized by the lab",
        f"  task          text_classification  {registry.tasks.get('text_classification').place}",
        f"  dataset       lines         {registry.datasets.get('lines').place}",
        "  examples      24 to train; validation 12, test 6",
        f"  rows          24 of at most 12 tokens, {np.mean(lengths):.0f} on average",
        "  export        none: transformers has no class with these layers; it has those of task: {head: "
        "transformers}. `electra-lab predict` works without it",
    ]
    assert max(lengths) <= 12


def test_the_page_shows_each_seed_as_it_finishes_and_the_bar_its_name(tmp_path: Path, model: Path, monkeypatch) -> None:
    leave_out_curve(monkeypatch)
    seen, page = dict[str, list[str]](), tmp_path / "out" / "report.html"

    def advance(console: Console, done: int) -> None:
        seen.setdefault(console.title, []).append(Page(page).text if page.exists() else "")

    monkeypatch.setattr(Console, "advance", advance)
    finetune(write_finetuning(tmp_path, model, seeds=[3, 5]), ["train.epochs=2"], tmp_path / "out", "cpu")
    first, second = seen["seed 3 (1/2)"], seen["seed 5 (2/2)"]
    assert first[0] == ""
    assert "Running" in first[6]
    assert "No seed has finished yet" in first[6]
    assert "not finished" in second[6]  # seed 5 is in the facts
    assert "Results on validation" in second[6]
    assert "Running" not in Page(page).text
