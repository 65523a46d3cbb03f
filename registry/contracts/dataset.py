"""Datasets: labelled examples for downstream tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class TextExample:
    """A text, or a pair of texts, with a label.

    label  a word for classification, a number for regression; None where it is not known
    id     as the benchmark names it, for files of predictions; by default its number in the split
    place  file:line, for errors
    """

    text: str
    pair: str | None = None
    label: str | float | None = None
    id: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class WordsExample:
    """The words of a sentence, each with a tag; `tags` is None where they are not known."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    id: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A part of a context, which begins at the character `start`."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class QuestionExample:
    """A question about a context.

    answers   all that count as right; empty if the context does not have one
    labelled  False where the answers are not known
    """

    question: str
    context: str
    answers: tuple[Answer, ...] = ()
    labelled: bool = True
    id: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class PairExample:
    """Two sentences that differ little, the first of which is acceptable and the second is not."""

    good: str
    bad: str
    paradigm: str = ""
    field: str = ""
    id: str = ""
    place: str = ""


AnyExample: TypeAlias = TextExample | WordsExample | QuestionExample | PairExample


def is_labelled(example: AnyExample) -> bool:
    """Return whether an example's label, tags or answers are known; a pair has nothing to know."""
    if isinstance(example, QuestionExample):
        return example.labelled
    return getattr(example, "label", getattr(example, "tags", True)) is not None


class Dataset(Protocol):
    """A source of examples. Registered as a class: __init__(self, /, *, <options>).

    `@datasets.register(name, yields=TextExample)` declares the type of its examples.

    splits  their names: `train`, `validation`, `test`, or others, such as a second test. The constructor raises
            DataError if files are missing
    skipped  optional: by split, a `Skipped` for each row that the last `read` left out
    submission(split, predictions)  optional: the name and the content of the file that the benchmark accepts, or None
            if it does not accept that split; `predictions` are the task's, one for each example
    """

    @property
    def splits(self) -> Sequence[str]: ...

    def read(self, split: str) -> Iterator[Any]:
        """Yield the examples of a split in the order of the source. Raises DataError, at file:line."""

    def fingerprint(self) -> str:
        """Return a hash of the content, which changes whenever the examples change. Raises DataError."""
