"""Corpora."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

Split = Literal["train", "validation", "test"]
Unit = Literal["records", "lines", "bytes", "ends of files"]  # the size of an end is not known

LONGEST = 1_000_000  # characters; the lab cuts longer documents at a space, so that none fills the memory


@dataclass(frozen=True, slots=True)
class Document:
    """A text, and how it is used.

    key    documents of one key are in one split, which depends on the key alone; by default the text
    split  of a corpus that brings its own splits
    again  it came before, and comes again to count more in training; held-out text is never repeated
    """

    text: str
    key: str | None = None
    split: Split | None = None
    again: bool = False


@dataclass(frozen=True, slots=True)
class Skipped:
    """A piece of the source that is no document, and that the user chose to leave out."""

    place: str  # file and line
    reason: str
    number: int = 1  # of units that are left out
    unit: Unit = "records"


class Corpus(Protocol):
    """A source of text. Registered as a class: __init__(self, /, *, <options>).

    One that reads files may have a method `files`, which returns those that it reads and those in its folders that it
    passes over, as two lists; `prepare` shows both.
    """

    def __iter__(self) -> Iterator[str | Document | Skipped]:
        """Yield the documents, in an order that depends on the content alone.

        A string is a document of its own key. Raises DataError for a source that cannot be read, or that is not what
        `fingerprint` returned the hash of.
        """

    def fingerprint(self) -> str:
        """Return a hash of the content, which changes whenever the documents change. Raises DataError."""
