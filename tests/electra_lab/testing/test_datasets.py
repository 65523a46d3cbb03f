"""The laws of datasets find mistakes: each one by the law for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from electra_lab.testing import DatasetContract
from registry import Answer, Dataset, PairExample, QuestionExample, TextExample, WordsExample, datasets
from registry.errors import DataError


def made(**changes: Any) -> type:
    """Return a dataset that reads the file `a`, a label on each line, with some of its methods replaced."""

    class Lines(Dataset):
        """Lines of a file."""

        def __init__(self, /, *, file: Path) -> None:
            self.file = file

        splits: Sequence[str] = ("train", "test")

        def read(self, split: str) -> Iterator[Any]:
            if split not in self.splits:
                raise DataError("no such split")
            for n, line in enumerate(self.file.read_text().split()):
                yield TextExample(f"{split} {n}", None, line, str(n), f"{self.file}:{n + 1}")

        def fingerprint(self) -> str:
            return self.file.read_text()

        def submission(self, split: str, predictions: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
            return f"{split}.txt", " ".join(str(found["prediction"]) for found in predictions)

    return type("Changed", (Lines,), {"__init__": Lines.__init__, "__doc__": Lines.__doc__, **changes})


def failed(kind: type, folder: Path, declared: Any = TextExample) -> list[str]:
    """Return the laws that a dataset breaks."""

    class Suite(DatasetContract):
        name = "mine"

        def options_in(self, folder: Path) -> Mapping[str, Any]:
            (folder / "a").write_text("x y")
            return {"file": str(folder / "a")}

        def change(self, folder: Path) -> None:
            (folder / "a").write_text("x z")

    found = []
    with datasets.isolated():
        datasets.register("mine", yields=declared)(kind)
        for law in [name for name in dir(Suite) if name.startswith("test_")]:
            try:
                getattr(Suite(), law)(folder)
            except (AssertionError, pytest.fail.Exception):
                found.append(law.removeprefix("test_"))
    return found


def text(label: Any = "x", id: str = "0", place: str = "c") -> TextExample:
    return TextExample("a", None, label, id, place)


def reading(*examples: Any) -> Callable[[Any, str], Iterator[Any]]:
    def read(self: Any, split: str) -> Iterator[Any]:
        if split not in self.splits:
            raise DataError("no such split")
        yield from examples

    return read


TYPE = "examples_are_of_the_declared_type"
IDS = "ids_are_unique_in_a_split_and_places_are_known"
CHANGES = "the_fingerprint_changes_with_the_examples"
FILES = "submissions_are_files_of_their_own"


def test_a_lawful_dataset(tmp_path: Path) -> None:
    assert failed(made(), tmp_path) == []
    assert failed(made(submission=lambda *_: None), tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({"splits": ()}, "splits_have_names_and_examples"),
        ({"splits": ("a", "a")}, "splits_have_names_and_examples"),
        ({"splits": ("a", "")}, "splits_have_names_and_examples"),
        ({"read": reading()}, "splits_have_names_and_examples"),
        ({"read": lambda self, split: iter([text()])}, "a_split_that_is_not_there_is_refused"),
        ({"read": reading(PairExample("a", "b", id="0", place="c"))}, TYPE),
        ({"read": reading(text(float("nan")))}, TYPE),
        ({"read": reading(text(""))}, TYPE),
        ({"read": reading(text(), text(1.0, "1"))}, TYPE),
        ({"read": reading(text(), text("y"))}, IDS),
        ({"read": reading(text(id=""))}, IDS),
        ({"read": reading(text(place=""))}, IDS),
        ({"read": reading(text(object()))}, TYPE),
        ({"fingerprint": lambda self: ""}, "the_fingerprint_is_the_same_each_time"),
        ({"fingerprint": lambda self: str(id(self))}, "the_fingerprint_is_the_same_each_time"),
        ({"fingerprint": lambda self: "always"}, CHANGES),
        ({"read": reading(text())}, CHANGES),
        ({"submission": lambda self, split, found: ("one.txt", "a")}, FILES),
        ({"submission": lambda self, split, found: (f"/tmp/{split}", "a")}, FILES),
        ({"submission": lambda self, split, found: (split, "")}, FILES),
    ],
)  # fmt: skip
def test_a_dataset_that_breaks_a_law(changes: Mapping[str, Any], law: str, tmp_path: Path) -> None:
    assert law in failed(made(**changes), tmp_path)


@pytest.mark.parametrize("of", ["an instance", "a process"])
def test_a_dataset_that_changes_while_it_is_read(of: str, tmp_path: Path) -> None:
    numbers = iter(range(1000))

    def read(self: Any, split: str) -> Iterator[Any]:
        self.readings = getattr(self, "readings", -1 if of == "an instance" else next(numbers))
        self.readings += of == "an instance"
        yield TextExample(str(self.readings), None, "x", "0", "c")

    assert "examples_are_the_same_each_time" in failed(made(read=read), tmp_path)
    kind = made(read=read, fingerprint=lambda self: str(getattr(self, "readings", "none")))
    assert "the_fingerprint_is_the_same_each_time" in failed(kind, tmp_path)


@pytest.mark.parametrize(
    ("declared", "right", "wrong"),
    [
        (WordsExample, {"words": ("a", "b"), "tags": ("O", "O")}, {"words": ("a", "b"), "tags": ("O",)}),
        (WordsExample, {"words": ("a",)}, {"words": ()}),
        (WordsExample, {"words": ("a",)}, {"words": ("a", "")}),
        (QuestionExample, {"question": "q", "context": "abc", "answers": (Answer("bc", 1),)},
         {"question": "q", "context": "abc", "answers": (Answer("bc", 0),)}),
        (QuestionExample, {"question": "q", "context": "abc", "labelled": False},
         {"question": "q", "context": "abc", "labelled": False, "answers": (Answer("bc", 1),)}),
        (PairExample, {"good": "a", "bad": "b"}, {"good": "a", "bad": ""}),
    ],
)  # fmt: skip
def test_examples_of_other_types(declared: Any, right: Any, wrong: Any, tmp_path: Path) -> None:
    for fields, laws in ((right, [CHANGES]), (wrong, [TYPE, CHANGES])):
        kind = made(read=reading(declared(**fields, id="0", place="c")), submission=lambda *_: None)
        assert [law for law in failed(kind, tmp_path, declared) if law in (TYPE, CHANGES)] == laws


def test_a_dataset_that_declares_no_type_of_examples(tmp_path: Path) -> None:
    class Own(TextExample):
        """A type that no task accepts."""

    assert TYPE in failed(made(), tmp_path, None)
    assert TYPE in failed(made(read=reading(Own("a", None, "x", "0", "c"))), tmp_path, Own)
