"""Corpora."""

from collections.abc import Iterator
from typing import Protocol


class Corpus(Protocol):
    """A source of text. Registered as a class: __init__(self, /, *, <options>)."""

    def __iter__(self) -> Iterator[str]:
        """Yield the documents, in an order that depends on the content alone."""

    def fingerprint(self) -> str:
        """Return a string that changes whenever the documents change; cheaper than reading them where possible."""
