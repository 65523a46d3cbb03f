"""CSV and TSV files."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from electra_lab.datasets._splits import TEST, Entry, NamedFiles, attempted
from electra_lab.datasets._texts import Name, TextFields
from electra_lab.sources.delimited import DELIMITERS, named, rows
from electra_lab.sources.files import BadInput, Files, uncompressed
from electra_lab.sources.records import text_lines
from registry import TextExample, datasets
from registry.errors import DataError, did_you_mean


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
                             the named columns, or Excel's line `sep=;` names one
    on_error                 treatment of a row that cannot be an example, such as one without a label: `stop`, or
                             `skip`
    held_out                 share of train for validation if it has no file, chosen by a hash of the texts
    """

    extensions = (".csv", ".tsv")

    columns: Annotated[list[Name], Field(min_length=1)] | None = None
    delimiter: Literal["auto", "comma", "semicolon", "tab"] = "auto"

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "columns": self.columns, "delimiter": self.delimiter}

    def _in_file(self, files: Files, file: Path, source: str) -> Iterator[Entry[TextExample]]:
        usual = "\t" if uncompressed(file).suffix.lower() == ".tsv" else ","
        written = rows(text_lines(files, file), DELIMITERS.get(self.delimiter), usual, self._has_columns)
        header, at = self.columns, str(file)
        if header is None:
            at, first = next(written, (at, []))
            if isinstance(first, BadInput):
                raise DataError(str(first))
            header = [name.strip() for name in first]
        if not header:
            return
        for name in self.names():
            self._refuse_column(name, header, at, source)
        for place, row in named(written, header):
            yield row if isinstance(row, BadInput) else attempted(self.example, row.get, place)

    def _refuse_column(self, name: str, header: list[str], place: str, source: str) -> None:
        """Raise DataError unless a column is there once, or is the label of the test."""
        if header.count(name) > 1:
            raise DataError(f"{place}: {header.count(name)} columns are called '{name}'. Rename all but one of them.")
        if name in header or (name == self.label and source == TEST):
            return
        hint = did_you_mean(name, header)
        raise DataError(f"{place}: there is no column '{name}'.{hint} Files without a header need `columns`.")

    def _has_columns(self, row: list[str]) -> bool:
        """Return whether a file's first row fits the named columns; the label may be missing."""
        if self.columns:
            return len(row) == len(self.columns)
        return {*self.names()[:-1]} <= {name.strip() for name in row}
