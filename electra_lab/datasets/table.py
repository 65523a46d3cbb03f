"""CSV and TSV files."""

import csv
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from electra_lab.datasets._files import CURE, FileSplits, columns, text_lines
from electra_lab.datasets._splits import TEST, Found, HeldOut, OnError, attempted
from electra_lab.datasets._texts import Fields, LabelType, Name
from electra_lab.sources.files import LONGEST_LINE, BadInput, Files, uncompressed
from registry import TextExample, datasets
from registry.errors import did_you_mean

EXTENSIONS = (".csv", ".tsv")
CHARACTERS = {"comma": ",", "semicolon": ";", "tab": "\t"}


@datasets.register("table", yields=TextExample)
class TableFiles(FileSplits[TextExample]):
    """CSV and TSV files, plain or compressed (.gz, .xz, .zst); each row is one example.

    Columns between commas or semicolons may be quoted, as in RFC 4180; between tabs, quotes are ordinary characters.
    White space around texts and labels is removed. A label that is empty is not known, and the test may be without the
    column.

    train, validation, test  a file, a pattern such as `*.tsv.gz`, or a folder, of which all .csv and .tsv files are
                             read; relative to the fine-tuning file
    text                     the column with the text
    pair                     the column with the second text, for pairs
    label                    the column with the label
    label_type               word, for classification, or number, for regression
    id                       the column with the example's id; without it examples are numbered
    columns                  names of the columns, of files without a header
    delimiter                auto is a tab in .tsv files and a comma in others, unless only another of the three gives
                             the columns that are named here
    on_error                 at a row that cannot be an example, such as one without a label: `stop`, or `skip` it
    held_out                 without a file for validation, the share of train that it gets, by a hash of the texts
    """

    def __init__(
        self,
        /,
        *,
        train: Path | None = None,
        validation: Path | None = None,
        test: Path | None = None,
        text: Name = "text",
        pair: Name | None = None,
        label: Name = "label",
        label_type: LabelType = "word",
        id: Name | None = None,
        columns: Annotated[list[Name], Field(min_length=1)] | None = None,
        delimiter: Literal["auto", "comma", "semicolon", "tab"] = "auto",
        on_error: OnError = "stop",
        held_out: HeldOut = 0.1,
    ) -> None:
        self._fields = Fields(text, pair, label, id, label_type)
        self._columns, self._delimiter = columns, delimiter
        options = {"fields": [text, pair, label, label_type, id], "columns": columns, "delimiter": delimiter}
        paths = {"train": train, "validation": validation, "test": test}
        super().__init__(paths, EXTENSIONS, options, held_out, on_error)

    def _in_file(self, files: Files, file: Path, source: str) -> Iterator[Found[TextExample]]:
        rows = self._rows(files, file, self._delimiter_of(files, file))
        header, at = self._columns, str(file)
        if header is None:
            at, header = next(rows, (at, []))
            header = [name.strip() for name in header]
        if not header:
            return
        places = {name: self._column(name, header, at, source) for name in self._fields.names()}
        for place, row in rows:
            if len(row) == len(header):
                cells = {name: None if column is None else row[column] for name, column in places.items()}
                yield attempted(self._fields.example, cells.__getitem__, place)
            else:
                yield BadInput(place, f"has {columns(len(row))}, but there are names for {len(header)}", CURE)

    def _column(self, name: str, header: list[str], place: str, source: str) -> int | None:
        """Return the place of a column in the header, None for labels that the test is without. Raises BadInput."""
        if header.count(name) > 1:
            raise BadInput(place, f"{header.count(name)} columns are called '{name}'", "Rename all but one of them.")
        if name in header:
            return header.index(name)
        if name == self._fields.label and source == TEST:
            return None
        known = did_you_mean(name, header).strip()
        raise BadInput(place, f"there is no column '{name}'", f"{known} Files without a header need `columns`.")

    def _delimiter_of(self, files: Files, file: Path) -> str:
        """Return the delimiter that gives the named columns, or else the most of them; of several, the usual one."""
        if self._delimiter != "auto":
            return CHARACTERS[self._delimiter]
        usual = "\t" if uncompressed(file).suffix.lower() == ".tsv" else ","
        found = {usual: (False, 0)}  # whether the first row fits, and its number of columns
        for delimiter in (usual, *CHARACTERS.values()):
            with suppress(BadInput):
                _, row = next(self._rows(files, file, delimiter), ("", []))
                found[delimiter] = self._has_columns(row), len(row)
        return max(found, key=found.__getitem__)

    def _has_columns(self, row: list[str]) -> bool:
        """Return whether a file's first row fits the columns that are named; the label may be missing."""
        if self._columns:
            return len(row) == len(self._columns)
        return {*self._fields.names()[:-1]} <= {name.strip() for name in row}

    def _rows(self, files: Files, file: Path, delimiter: str) -> Iterator[tuple[str, list[str]]]:
        """Yield the places and the columns of the rows that are not blank. Raises DataError."""
        if delimiter == "\t":
            yield from ((place, line.split("\t")) for place, line in text_lines(files, file) if line.strip())
            return
        csv.field_size_limit(LONGEST_LINE)
        rows = csv.reader((line + "\n" for _, line in text_lines(files, file)), delimiter=delimiter, strict=True)
        while True:
            place = f"{file}:{rows.line_num + 1}"
            try:
                row = next(rows, None)
            except csv.Error as error:
                raise BadInput(place, f"is not a row of columns ({error})", "Is a quote missing?") from None
            if row is None:
                return
            if any(cell.strip() for cell in row):
                yield place, row
