"""Datasets in files, with paths for each split."""

from __future__ import annotations

import hashlib
import json
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from electra_lab.datasets._splits import E, Found, OnError, Splits
from electra_lab.sources.files import BadInput, Files
from electra_lab.sources.records import decoded, kind_of
from registry.errors import DataError

CURE = "Correct it."
UTF8 = "Convert the file, for example by iconv."
LONG = "Is it a file of lines?"
SURROGATE = re.compile("[\ud800-\udfff]")  # JSON may have them alone


class FileSplits(Splits[E]):
    """A dataset in files.

    paths       of each split: a file, a pattern or a folder, of which all files with the given extensions are read
    extensions  also with the ending of a compressed file after them
    options     everything else that decides the examples

    Raises ValueError if no path is given, DataError for one that stands for nothing, or for a file of two splits.
    """

    def __init__(
        self,
        paths: Mapping[str, Path | None],
        extensions: Sequence[str],
        options: Mapping[str, Any],
        held_out: float = 0.0,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(held_out, on_error)
        self._options = {**options, "held_out": held_out} | ({"on_error": on_error} if on_error == "skip" else {})
        self._files = {split: Files([path], extensions, {}) for split, path in paths.items() if path}
        if not self._files:
            raise ValueError(f"no file is named. Set {' or '.join(paths)}.")
        owners: dict[Path, str] = {}
        for split, files in self._files.items():
            for file in files.files:
                if (other := owners.setdefault(file.resolve(), split)) != split:
                    raise DataError(f"{file}: is read for {other} and for {split}. A file belongs to one split.")

    def _sources(self) -> list[str]:
        return [*self._files]

    def _place(self, source: str) -> str:
        first, *others = self._files[source].files
        return f"{first} and {len(others)} more" if others else str(first)

    def _examples(self, source: str) -> Iterator[Found[E]]:
        for file in self._files[source].files:
            yield from self._in_file(self._files[source], file, source)

    @abstractmethod
    def _in_file(self, files: Files, file: Path, source: str) -> Iterator[Found[E]]:
        """Yield the examples of a file with their keys, and bad rows. Raises DataError, at file:line."""

    def fingerprint(self) -> str:
        """Return a hash of the options and the content of each split's files, wherever they lie."""
        content = {split: files.fingerprint() for split, files in self._files.items()}
        return hashlib.sha256(json.dumps([self._options, content], sort_keys=True).encode()).hexdigest()


def text_lines(files: Files, file: Path) -> Iterator[tuple[str, str]]:
    """Yield the places and the lines of a UTF-8 file, without their ends. Raises DataError, at file:line."""
    for number, line in enumerate(files.lines(file, LONG), start=1):
        place = f"{file}:{number}"
        yield place, decoded(line.removesuffix(b"\r"), place, UTF8)


def columns(number: int) -> str:
    return "1 column" if number == 1 else f"{number} columns"


def text_of(value: Any, field: str, place: str, cure: str = CURE) -> str:
    """Return the value of a field if it is text. Raises BadInput."""
    if not isinstance(value, str):
        raise BadInput(place, f"the field '{field}' is {kind_of(value)}, not text", cure)
    if SURROGATE.search(value):
        raise BadInput(place, f"the field '{field}' has half of a character (\\ud800 to \\udfff)", cure)
    return value
