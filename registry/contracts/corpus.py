"""Corpora, and long texts as several documents."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

Split = Literal["train", "validation", "test"]
Unit = Literal["records", "lines", "bytes", "ends of files"]  # the size of an end is unknown

LONGEST = 1_000_000  # characters; longer documents are cut at a space to bound memory
LONGER = r"(?<!\S)\S{{{},}}"  # the regular expression of words that are too long for k-mers; see `Corpus`


@dataclass(frozen=True, slots=True)
class Document:
    """A text and its use.

    key      documents with the same key are in the same split, which depends on the key alone; by default the text
    split    for a corpus with its own splits
    again    a repetition, which gives the text more weight in training; held-out text is never repeated
    removed  whether an option of the corpus removed a part of the text; `prepare` counts these documents
    begins   whether it is the first part of a record, such as a sequence; `prepare` counts these, too
    """

    text: str
    key: str | None = None
    split: Split | None = None
    again: bool = False
    removed: bool = False
    begins: bool = False


@dataclass(frozen=True, slots=True)
class Skipped:
    """A piece of the source that cannot be read, and that the user chose to skip."""

    place: str  # file and line
    reason: str
    number: int = 1  # of skipped units
    unit: Unit = "records"


class Corpus(Protocol):
    """A source of text. Registered as a class: __init__(self, /, *, <options>).

    A corpus that reads files may have a method `files`, which returns the files that it reads and the other files in
    its folders, as two lists; `prepare` shows both. One that changes text, such as lower case, may have a method
    `changes`, which returns replacements by regular expression, in order: {"a": "A"}. They become a part of the
    tokenizer, so that text in use is changed too. {LONGER.format(k + 1): "?"} stands for overlapping k-mers.
    """

    def __iter__(self) -> Iterator[str | Document | Skipped]:
        """Yield the documents, in an order that depends on the content alone.

        A string is a document with itself as its key. Raises DataError for a source that cannot be read, or that has
        changed since `fingerprint` returned its hash.
        """

    def fingerprint(self) -> str:
        """Return a hash of the content, which changes whenever the documents change. Raises DataError."""


def pieces(text: str) -> list[str]:
    """Return a text as documents without white space around them: one, several if it is too long, or none."""
    found, rest = cut(text)
    rest = rest.rstrip()
    return [*found, rest] if rest else found


def cut(text: str) -> tuple[list[str], str]:
    """Cut documents of at most LONGEST characters off a text that may go on, at white space if there is some.

    The rest has at most LONGEST characters.
    """
    found = []
    while len(text := text.lstrip()) > LONGEST:
        head = text[: LONGEST + 1]
        words = head.rsplit(None, 1)
        end = LONGEST if head[-1].isspace() or len(words) == 1 else len(words[0])
        found.append(head[:end].rstrip())
        text = text[end:]
    return found, text
