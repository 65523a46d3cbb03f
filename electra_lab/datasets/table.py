"""CSV and TSV files."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from electra_lab.datasets._splits import TEST, Found, NamedFiles, attempted, columns
from electra_lab.datasets._texts import Name, TextFields
from electra_lab.sources.files import LONGEST_LINE, BadInput, Files, uncompressed
from electra_lab.sources.records import check_utf8, text_lines
from registry import TextExample, datasets
from registry.errors import DataError, did_you_mean

CHARACTERS = {"comma": ",", "semicolon": ";", "tab": "\t"}


Row = list[str] | BadInput


@datasets.register("table", yields=TextExample)
@dataclass(kw_only=True, eq=False)
class TableFiles(TextFields, NamedFiles[TextExample]):
    """CSV and TSV files, plain or compressed (.gz, .xz, .zst); each row is one example.

    Columns between commas or semicolons may be quoted, as in RFC 4180; between tabs, quotes are ordinary characters.
    White space around texts and labels is removed. An empty label is unknown, and the test may lack the column.

    train, validation, test  a file, a pattern such as `*.tsv.gz`, or a folder, of which all .csv and .tsv files are
                             read; relative to the fine-tuning file
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

    def _in_file(self, files: Files, file: Path, source: str) -> Iterator[Found[TextExample]]:
        rows = _rows(files, file, self._delimiter_of(files, file))
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
                cells = {name: None if column is None else row[column] for name, column in places.items()}
                yield attempted(self.example, cells.__getitem__, place)
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
        found = {usual: (False, 0)}  # whether the first row fits, and its number of columns
        for delimiter in (usual, *CHARACTERS.values()):
            _, row = next(_rows(files, file, delimiter), ("", []))
            if not isinstance(row, BadInput):
                found[delimiter] = self._has_columns(row), len(row)
        return max(found, key=found.__getitem__)

    def _has_columns(self, row: list[str]) -> bool:
        """Return whether a file's first row fits the named columns; the label may be missing."""
        if self.columns:
            return len(row) == len(self.columns)
        return {*self.names()[:-1]} <= {name.strip() for name in row}


def _rows(files: Files, file: Path, delimiter: str) -> Iterator[tuple[str, Row]]:
    """Yield the places and the cells of the rows that are not blank; for a bad row its error."""
    lines = text_lines(files, file)
    split = ((place, line.split("\t")) for place, line in lines) if delimiter == "\t" else _quoted(lines, delimiter)
    for place, row in split:
        if isinstance(row, BadInput):
            yield place, row
        elif any(cell.strip() for cell in row):
            yield place, attempted(_whole, row, place)


def _whole(row: list[str], place: str) -> list[str]:
    check_utf8(row, place)
    return row


def _quoted(lines: Iterator[tuple[str, str]], delimiter: str) -> Iterator[tuple[str, Row]]:
    """Yield the places and the cells of rows that may have quotes. Only the first line of a bad row is lost."""
    csv.field_size_limit(LONGEST_LINE)
    row_lines: list[tuple[str, str]] = []
    again: list[tuple[str, str]] = []  # lines that a bad row read beyond its first one, the last first

    def feed() -> Iterator[str]:
        while (line := again.pop() if again else next(lines, None)) is not None:
            row_lines.append(line)
            yield line[1] + "\n"

    reader = csv.reader(feed(), delimiter=delimiter, strict=True)
    while True:
        row_lines.clear()
        try:
            row: Row | None = next(reader, None)
        except csv.Error as error:
            row = BadInput(row_lines[0][0], f"is not a row of columns ({error})", "Is a quote missing?")
            again += reversed(row_lines[1:])
            reader = csv.reader(feed(), delimiter=delimiter, strict=True)
        if row is None:
            return
        yield row_lines[0][0], row
