"""CSV and TSV files."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from electra_lab.datasets._splits import TEST, Entry, NamedFiles, attempted, columns
from electra_lab.datasets._texts import Name, TextFields
from electra_lab.sources.delimited import cells
from electra_lab.sources.files import BadInput, Files, uncompressed
from electra_lab.sources.records import text_lines
from registry import TextExample, datasets
from registry.errors import DataError, did_you_mean

CHARACTERS = {"comma": ",", "semicolon": ";", "tab": "\t"}


@datasets.register("table", yields=TextExample)
@dataclass(kw_only=True, eq=False)
class TableFiles(TextFields, NamedFiles[TextExample]):
    """CSV and TSV files, plain or compressed (.gz, .xz, .bz2, .zst); each row is one example.

    Columns between commas or semicolons may be quoted, as in RFC 4180; between tabs, quotes are ordinary characters.
    White space around texts and labels is removed. An empty label is unknown, and the test may lack the column.

    train, validation, test  a file, a pattern such as `*.tsv.gz`, or a folder (all its .csv and .tsv files); relative
                             to the fine-tuning file
    text                     the column with the text
    pair                     the column with the second text, for pairs
    label                    the column with the label
    label_type               word, for classification, or number, for regression
    id                       the column with the example's id; by default examples are numbered
    columns                  names of the columns, for files without a header
    delimiter                auto is a tab in .tsv files and a comma in others, unless only another of the three gives
                             the named columns
    on_error                 at a row that cannot be an example, such as one without a label: `stop`, or `skip` it
    held_out                 without a file for validation, its share of train, chosen by a hash of the texts
    """

    extensions = (".csv", ".tsv")

    columns: Annotated[list[Name], Field(min_length=1)] | None = None
    delimiter: Literal["auto", "comma", "semicolon", "tab"] = "auto"

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "columns": self.columns, "delimiter": self.delimiter}

    def _in_file(self, files: Files, file: Path, source: str) -> Iterator[Entry[TextExample]]:
        rows = cells(text_lines(files, file), self._delimiter_of(files, file))
        header, at = self.columns, str(file)
        if header is None:
            at, first = next(rows, (at, []))
            if isinstance(first, BadInput):
                raise DataError(str(first))
            header = [name.strip() for name in first]
        if not header:
            return
        places = {name: self._column(name, header, at, source) for name in self.names()}
        for place, row in rows:
            if isinstance(row, BadInput):
                yield row
            elif len(row) == len(header):
                values = {name: None if column is None else row[column] for name, column in places.items()}
                yield attempted(self.example, values.__getitem__, place)
            else:
                yield BadInput(place, f"has {columns(len(row))}, but there are names for {len(header)}")

    def _column(self, name: str, header: list[str], place: str, source: str) -> int | None:
        """Return the place of a column in the header, None for missing labels of the test. Raises DataError."""
        if header.count(name) > 1:
            raise DataError(f"{place}: {header.count(name)} columns are called '{name}'. Rename all but one of them.")
        if name in header:
            return header.index(name)
        if name == self.label and source == TEST:
            return None
        known = did_you_mean(name, header)
        raise DataError(f"{place}: there is no column '{name}'.{known} Files without a header need `columns`.")

    def _delimiter_of(self, files: Files, file: Path) -> str:
        """Return the delimiter that gives the named columns, or else the most of them; of several, the usual one."""
        if self.delimiter != "auto":
            return CHARACTERS[self.delimiter]
        usual = "\t" if uncompressed(file).suffix.lower() == ".tsv" else ","
        fits = {usual: (False, 0)}  # whether the first row fits, and its number of columns
        for delimiter in (usual, *CHARACTERS.values()):
            _, row = next(cells(text_lines(files, file), delimiter), ("", []))
            if not isinstance(row, BadInput):
                fits[delimiter] = self._has_columns(row), len(row)
        return max(fits, key=fits.__getitem__)

    def _has_columns(self, row: list[str]) -> bool:
        """Return whether a file's first row fits the named columns; the label may be missing."""
        if self.columns:
            return len(row) == len(self.columns)
        return {*self.names()[:-1]} <= {name.strip() for name in row}
