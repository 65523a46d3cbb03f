"""English prose that every installation of the lab has: the documentation inside Python and torch."""

import ast
import hashlib
import inspect
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Annotated

from pydantic import Field

from registry import Document, corpora
from registry.errors import DataError

# Decides which modules are held out. Of 1,000 such draws it is one of the two that hold out about as much text for
# validation as for the test, and share least of it (1 %) with the other modules of Python 3.11 and torch 2.13.
DRAW = "docstrings 353 "
FORMAT = 2  # raise it when the same files would give other documents


@corpora.register("docstrings")
@dataclass(kw_only=True)
class Docstrings:
    """Docstrings and help topics of the installed Python, its standard library and torch; no download.

    About 7 MB of real, if technical, English. What exactly it holds depends on the installed versions, which the
    run directory records. All documents of a module of the standard library, of a subpackage of torch and of a help
    topic are in one split; a text that several have belongs to the first.

    min_characters  shorter docstrings are left out; they say little
    """

    min_characters: Annotated[int, Field(ge=1)] = 80

    def __post_init__(self) -> None:
        self._hashes: dict[Path, bytes] = {}

    def __iter__(self) -> Iterator[Document]:
        from pydoc_data.topics import topics

        seen: set[str] = set()
        texts = ((text, f"topics.{name}") for name, text in topics.items())
        found = ((text, _key(name)) for file, name in _files() for text in _documentation(self._read(file)))
        for text, key in chain(texts, found):
            document = inspect.cleandoc(text).strip()
            if len(document) >= self.min_characters and document not in seen:
                seen.add(document)
                yield Document(document, DRAW + key)

    def fingerprint(self) -> str:
        """A hash of the files and of the names that decide keys and order; and Python's version, which parses them."""
        from pydoc_data.topics import topics

        state = hashlib.sha256(f"{FORMAT} {DRAW} {sys.version_info[:3]} {self.min_characters} {topics}".encode())
        for file, name in _files():
            if source := self._read(file, again=True):
                state.update(name.encode() + hashlib.sha256(source).digest())
        return state.hexdigest()

    def _read(self, file: Path, again: bool = False) -> bytes:
        """Return the source, b"" if it cannot be read. Raises DataError if it changed since it was read last.

        again  start over: it may have changed
        """
        try:
            source = file.read_bytes()
        except OSError:
            source = b""
        digest = hashlib.sha256(source).digest()
        if again:
            self._hashes[file] = digest
        if self._hashes.setdefault(file, digest) != digest:
            raise DataError(f"{file}: changed while it was read. Start again when the installation is complete.")
        return source


def _files() -> list[tuple[Path, str]]:
    """The source files and their names below their package's folder, in one order everywhere."""
    roots = {"python": sysconfig.get_paths()["stdlib"]}
    spec = find_spec("torch")  # found, not imported
    if spec and spec.origin:
        roots["torch"] = os.path.dirname(spec.origin)
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "pydoc_data", "__pycache__"}
    named = []
    for root, top in roots.items():
        for folder, folders, files in os.walk(top):
            folders[:] = [name for name in folders if name not in left_out]
            below = Path(root, os.path.relpath(folder, top)).as_posix()
            named += [(Path(folder, name), f"{below}/{name}") for name in files if name.endswith(".py")]
    return sorted(named, key=lambda pair: pair[1])


def _key(name: str) -> str:
    """Return the module that a file belongs to: Python's top-level module, or torch's subpackage."""
    root, *parts = name.removesuffix(".py").split("/")
    return parts[0] if root == "python" else f"torch.{parts[0]}"


def _documentation(source: bytes) -> Iterator[str]:
    """The docstrings in a source file, and the ones it gives to compiled functions by `add_docstr(f, \"...\")`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's files
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return  # templates and deliberately broken files ship with both packages
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if text := ast.get_docstring(node, clean=False):
                yield text
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "").startswith("add_docstr"):
            for argument in node.args[1:]:
                for part in ast.walk(argument):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield part.value
