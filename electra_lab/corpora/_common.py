"""Shared by the corpora: files and their fingerprint, documents in records, skipping."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from electra_lab.sources.files import BadInput, Files
from electra_lab.sources.records import kind_of, text_of, value_of
from registry import Document, Skipped
from registry.contracts.data import pieces
from registry.errors import DataError, did_you_mean

Paths = Annotated[list[Path], Field(min_length=1)]
FieldName = Annotated[str, Field(min_length=1)]


def left_out(error: BadInput, on_error: str) -> Skipped:
    """Return the part of the source that is left out, if the user chose to skip. Raises DataError otherwise."""
    if on_error == "stop":
        raise DataError(f"{error} To leave it out, set on_error: skip.") from None
    return error.skipped


class FileCorpus(ABC):
    """A corpus in files.

    paths       files, patterns, or folders, of which all files with the given extensions are read
    extensions  extensions of the files, also with that of a compressed file appended
    options     all other options that determine the documents

    Raises DataError for a path that matches nothing.
    """

    def __init__(self, paths: Sequence[Path], extensions: Sequence[str], options: Mapping[str, Any]) -> None:
        self._on_error = options["on_error"]
        self._files = Files(paths, extensions, options)

    def __iter__(self) -> Iterator[str | Document | Skipped]:
        for file in self._files.files:
            try:
                yield from self._in_file(file)
            except BadInput as error:
                self._files.check(file)  # a file that is being written to looks damaged, too
                yield left_out(error, self._on_error)

    @abstractmethod
    def _in_file(self, file: Path) -> Iterator[str | Document | Skipped]:
        """Yield the documents of a file and its skipped pieces. Raises BadInput if the rest cannot be read."""

    def files(self) -> tuple[list[Path], list[Path]]:
        """Return the files that are read, and those that are passed over."""
        return self._files.files, self._files.ignored

    def left_out(self, error: BadInput) -> Skipped:
        """Return the part that is left out, if the user chose to skip. Raises the error otherwise."""
        if self._on_error == "stop":
            raise error
        return error.skipped

    def fingerprint(self) -> str:
        """Return a hash of the content, which does not change when files are moved."""
        return self._files.fingerprint()


def documents_in(record: Any, place: str, field: str, key: str | None) -> list[str | Document]:
    """Return the text in a field of a record as documents: one, several if it is too long, none if it is empty.

    field  a field's name; `a.b` is the field b of the object in field a
    key    the field whose value is the key of the documents

    Raises BadInput.
    """
    texts = pieces(text_of(value_of(record, place, field), field, place))
    if key is None:
        return [*texts]
    value = key_of(record, place, key)
    return [Document(text, value) for text in texts]


def key_of(record: Any, place: str, field: str) -> str:
    """Return the value of a field as the key of a record's documents. Raises BadInput."""
    value = value_of(record, place, field)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadInput(place, f"the field '{field}' is {kind_of(value)}, so it cannot be a key")
    return str(value)


def refuse_ambiguous(file: Path, column: str, names: Sequence[str]) -> None:
    """Raise DataError unless a table has the column once."""
    if column not in names:
        raise DataError(f"{file}: has no column '{column}'.{did_you_mean(column, names)}")
    if names.count(column) > 1:
        raise DataError(f"{file}: several columns are called '{column}'. Rename all but one of them.")
