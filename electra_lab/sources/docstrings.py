"""The documentation inside the installed Python and torch: English prose that every installation of the lab has."""

import ast
import hashlib
import os
import sysconfig
import warnings
from collections import deque
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from registry.errors import DataError


def installed_files() -> list[tuple[Path, str]]:
    """Return the source files and their names, such as `python/json/decoder.py`, in one order everywhere."""
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


class Sources:
    """Reader of source files that notices changes."""

    def __init__(self) -> None:
        self._hashes: dict[Path, bytes] = {}

    def read(self, file: Path, again: bool = False) -> bytes:
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


def documentation(source: bytes) -> Iterator[str]:
    """Yield the docstrings in a source file, and those of compiled functions, as in `add_docstr(f, \"...\")`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's files
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return  # templates and deliberately broken files ship with both packages
    for node in ast.walk(tree) if b"add_docstr" in source else _statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if text := ast.get_docstring(node, clean=False):
                yield text
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "").startswith("add_docstr"):
            for argument in node.args[1:]:
                for part in ast.walk(argument):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield part.value


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield statements in the order of `ast.walk`, which spends most of its time on expressions."""
    todo = deque[ast.AST]([tree])
    while todo:
        node = todo.popleft()
        for name in ("body", "handlers", "cases", "orelse", "finalbody"):
            todo.extend(getattr(node, name, ()))
        yield node
