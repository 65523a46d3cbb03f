"""Problems of the examples, all at once and before anything is made; and what is said without being an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from electra_lab.jobs.finetuning.notes import notes
from electra_lab.jobs.finetuning.run import finetune
from registry import Answer, QuestionExample, TextExample, WordsExample
from registry.errors import DataError
from tests.electra_lab.jobs.finetuning.small import write_finetuning


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
    asked = QuestionExample("who?", "the cat", (Answer("cat", 4),))
    unknown = QuestionExample("who?", "the cat", labelled=False)
    [found] = notes({"train": [asked], "test": [unknown]})
    assert "another label" not in found


def test_empty_texts_and_odd_labels() -> None:
    train = texts(*[("cat " * n, "a") for n in range(1, 19)], ("cat", "b"), ("dog", "c"))
    found = list(notes({"train": train, "test": texts((" ", None), ("mat", None))}))
    assert [note.split(" (")[0] for note in found[:2]] == [
        "1 examples of train have a copy with another label", "1 of 2 examples of test have an empty text",
    ]  # fmt: skip
    assert ("b, c" in found[2], "90%" in found[3], len(found)) == (True, True, 4)


def test_all_problems_are_named_at_once_and_nothing_is_made(tmp_path: Path, model: Path) -> None:
    """One class in train, no labels in validation, a bad row in the test."""
    for split, rows in (("train", "the cat,a\nthe dog,a\n"), ("validation", "a,\nb,\n"), ("test", "a,b,c\n")):
        (tmp_path / f"{split}.csv").write_text(f"text,label\n{rows}")
    dataset = {"type": "table", **{split: f"{split}.csv" for split in ("train", "validation", "test")}}
    with pytest.raises(DataError) as caught:
        finetune(write_finetuning(tmp_path, model, dataset=dataset), [], tmp_path / "out", "cpu")
    said = str(caught.value)
    assert [part in said for part in ("label 'a'", "examples of validation", f"{tmp_path / 'test.csv'}:2: ")] == [
        True
    ] * 3
    assert not (tmp_path / "out").exists()


def test_notes_come_first_and_the_end_names_model_and_command(tmp_path: Path, model: Path, capsys) -> None:
    path = write_finetuning(tmp_path, model, task={"type": "text_classification", "head": "dense"})
    lines = (tmp_path / "texts" / "train.txt").read_text().splitlines(keepends=True)
    (tmp_path / "texts" / "validation.txt").write_text("".join(lines[:3]))
    out = finetune(path, ["train.epochs=1"], tmp_path / "out", "cpu")
    said = capsys.readouterr().err
    assert "note: 3 of 3 examples of validation are in train too" in said.partition("\nanimals, seed 0")[0]
    assert "export        model/" in said.partition("\nstep ")[0]
    assert said.splitlines()[-2:] == [
        f"for transformers: {out / 'seed-0' / 'model'}", f"for new text: electra-lab predict {out} TEXT",
    ]  # fmt: skip
