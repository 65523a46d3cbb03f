"""Datasets: labelled examples for downstream tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class TextExample:
    """A text, or a pair of texts, with a label.

    label  a word for classification, a number for regression; None if it is unknown
    id     as in the benchmark, for files of predictions; by default the number in the split
    place  file:line, for errors
    """

    text: str
    pair: str | None = None
    label: str | float | None = None
    id: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class WordsExample:
    """The words of a sentence, each with a tag; `tags` is None if they are unknown."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    id: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A part of a context that begins at the character `start`."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class QuestionExample:
    """A question about a context.

    answers   all right answers; empty if the context does not have one
    labelled  False if the answers are unknown
    """

    question: str
    context: str
    answers: tuple[Answer, ...] = ()
    labelled: bool = True
    id: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class PairExample:
    """Two similar sentences, of which the first is acceptable and the second is not."""

    good: str
    bad: str
    paradigm: str = ""
    field: str = ""
    id: str = ""
    place: str = ""


AnyExample: TypeAlias = TextExample | WordsExample | QuestionExample | PairExample


def is_labelled(example: AnyExample) -> bool:
    """Return whether an example's label, tags or answers are known; always True for a pair."""
    if isinstance(example, QuestionExample):
        return example.labelled
    return getattr(example, "label", getattr(example, "tags", True)) is not None


class Dataset(Protocol):
    """A source of examples. Registered as a class: __init__(self, /, *, <options>).

    `@datasets.register(name, yields=TextExample)` declares the type of its examples.

    splits  names: `train`, `validation`, `test`, or others, such as a second test. The constructor raises DataError if
            files are missing
    skipped  optional: by split, a `Skipped` for each row that the last `read` left out
    labels   optional: the names of all labels in an order, which models then have; known once a split was read
    fields(options)  optional, a static method: the names of the fields with the text and, for pairs, the second text
    submission(split, predictions)  optional: the name and the content of the file that the benchmark accepts, or None
            if it does not accept this split; `predictions` are those of the task, one for each example
    """

    @property
    def splits(self) -> Sequence[str]: ...

    def read(self, split: str) -> Iterator[Any]:
        """Yield the examples of a split in the order of the source. Raises DataError, at file:line."""

    def fingerprint(self) -> str:
        """Return a hash of the content, which changes whenever the examples change. Raises DataError."""
