"""A corpus."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from registry import Document, corpora
from registry.errors import DataError


@corpora.register("my_corpus")
class MyCorpus:
    """The lines of a text file; each is one document.

    path  the file, relative to the experiment file
    """

    def __init__(self, /, *, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[Document]:
        for line in self._text().splitlines():
            if line.strip():
                yield Document(line[:1_000_000], key=line)  # documents with the same key are in the same split

    def fingerprint(self) -> str:
        """Return a hash of the content: when it changes, the token store is built again."""
        return hashlib.sha256(self._text().encode()).hexdigest()

    def _text(self) -> str:
        try:
            return self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.path}: cannot be read as UTF-8 ({error}).") from None
