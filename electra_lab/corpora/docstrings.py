"""English prose that every installation of the lab has: the documentation inside Python and torch."""

import ast
import hashlib
import inspect
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from pydantic import Field

from registry import corpora

FORMAT = 1  # raise it when the same files would give other documents


@corpora.register("docstrings")
@dataclass(kw_only=True)
class Docstrings:
    """Docstrings and help topics of the installed Python, its standard library and torch; no download.

    About 7 MB of real, if technical, English. What exactly it holds depends on the installed versions, which the
    run directory records.

    min_characters  shorter docstrings are left out; they say little
    """

    min_characters: Annotated[int, Field(ge=1)] = 80

    def __iter__(self) -> Iterator[str]:
        from pydoc_data.topics import topics

        seen: set[str] = set()
        found = (text for file, _ in _files() for text in _documentation(file))
        for text in (*topics.values(), *found):
            document = inspect.cleandoc(text).strip()
            if len(document) >= self.min_characters and document not in seen:
                seen.add(document)
                yield document

    def fingerprint(self) -> str:
        """Python's version, and names and sizes of the files: reading them all takes many seconds."""
        state = hashlib.sha256(f"{FORMAT} {sys.version_info[:3]} {self.min_characters}".encode())
        for file, name in _files():
            state.update(f"{name} {file.stat().st_size}\n".encode())
        return state.hexdigest()


def _files() -> list[tuple[Path, str]]:
    """The source files and their names below their package's folder, in one order everywhere."""
    roots = {"python": Path(sysconfig.get_paths()["stdlib"])}
    spec = find_spec("torch")  # found, not imported
    if spec and spec.origin:
        roots["torch"] = Path(spec.origin).parent
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "pydoc_data", "__pycache__"}
    named = [
        (file, f"{root}/{file.relative_to(folder).as_posix()}")
        for root, folder in roots.items()
        for file in folder.rglob("*.py")
        if not left_out & set(file.relative_to(folder).parts)
    ]
    return sorted(named, key=lambda pair: pair[1])


def _documentation(file: Path) -> Iterator[str]:
    """The docstrings in a file, and the ones it gives to compiled functions by `add_docstr(f, \"...\")`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's files
            tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError):
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
