"""English prose that every installation of the lab has: the documentation inside Python and torch."""

import hashlib
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Annotated

from pydantic import Field

from electra_lab.sources.docstrings import Sources, documentation, installed_files
from registry import Document, corpora

# Determines which modules are held out. Of 1,000 such draws it is one of the two that hold out about as much text for
# validation as for the test, and share the least of it (1 %) with the other modules of Python 3.11 and torch 2.13.
DRAW = "docstrings 353 "
FORMAT = 2  # raise it when the same files would give other documents


@corpora.register("docstrings")
@dataclass(kw_only=True)
class Docstrings:
    """Docstrings and help topics of the installed Python, its standard library and torch; no download.

    About 7 MB of technical English. The content depends on the installed versions, which the run directory records.
    All documents of a module of the standard library, of a subpackage of torch or of a help topic are in one split. A
    text that occurs several times belongs to the first.

    min_characters  shorter docstrings are left out, as they say little
    """

    min_characters: Annotated[int, Field(ge=1, le=10**9)] = 80

    def __post_init__(self) -> None:
        self._sources = Sources()

    def __iter__(self) -> Iterator[Document]:
        from pydoc_data.topics import topics

        seen: set[str] = set()
        help_texts = ((text, f"topics.{name}") for name, text in topics.items())
        for text, key in chain(help_texts, self._docstrings()):
            document = inspect.cleandoc(text).strip()
            if len(document) >= self.min_characters and document not in seen:
                seen.add(document)
                yield Document(document, DRAW + key)

    def _docstrings(self) -> Iterator[tuple[str, str]]:
        """Yield all docstrings with their keys."""
        for file, name in installed_files():
            for text in documentation(self._sources.read(file)):
                yield text, _key(name)

    def fingerprint(self) -> str:
        """Return a hash of the files, of the names that determine keys and order, and of the version of Python."""
        from pydoc_data.topics import topics

        state = hashlib.sha256(f"{FORMAT} {DRAW} {sys.version_info[:3]} {self.min_characters} {topics}".encode())
        for file, name in installed_files():
            if source := self._sources.read(file, again=True):
                state.update(name.encode() + hashlib.sha256(source).digest())
        return state.hexdigest()


def _key(name: str) -> str:
    """Return the module that a file belongs to: Python's top-level module, or torch's subpackage."""
    root, *parts = name.removesuffix(".py").split("/")
    return parts[0] if root == "python" else f"torch.{parts[0]}"
