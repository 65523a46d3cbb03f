"""The source code of Python's standard library, as installed."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from registry import Document, corpora
from registry.contracts.data import pieces


@corpora.register("python_source")
class PythonSource:
    """The .py files of the standard library, without tests; the parts of a file are in the same split."""

    def __init__(self, /) -> None:
        root = Path(sysconfig.get_path("stdlib"))
        found = {file.relative_to(root).as_posix(): file for file in root.rglob("*.py")}
        skipped = {"site-packages", "dist-packages", "test", "tests", "idlelib"}
        self._files = {name: found[name] for name in sorted(found) if skipped.isdisjoint(name.split("/"))}

    def __iter__(self) -> Iterator[Document]:
        for name, file in self._files.items():
            for text in pieces(file.read_text(encoding="utf-8", errors="replace")):
                yield Document(text, name)

    def fingerprint(self) -> str:
        return hashlib.sha256("".join(f"{item.key}\n{item.text}" for item in self).encode()).hexdigest()
