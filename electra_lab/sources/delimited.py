"""Rows of cells in CSV and TSV files. `place` is file:line."""

import csv
from collections.abc import Iterator

from electra_lab.sources.files import LONGEST_LINE, BadInput
from electra_lab.sources.records import check_utf8

Row = list[str] | BadInput


def cells(lines: Iterator[tuple[str, str]], delimiter: str) -> Iterator[tuple[str, Row]]:
    """Yield the places and the cells of the rows that are not blank; for a bad row its error.

    Between tabs, quotes are ordinary characters.
    """
    split = ((place, line.split("\t")) for place, line in lines) if delimiter == "\t" else _quoted(lines, delimiter)
    for place, row in split:
        if not isinstance(row, BadInput):
            if not any(cell.strip() for cell in row):
                continue
            try:
                check_utf8(row, place)
            except BadInput as error:
                row = error
        yield place, row


def _quoted(lines: Iterator[tuple[str, str]], delimiter: str) -> Iterator[tuple[str, Row]]:
    """Yield the places and the cells of rows that may have quotes. Only the first line of a bad row is lost."""
    csv.field_size_limit(LONGEST_LINE)
    row_lines: list[tuple[str, str]] = []
    again: list[tuple[str, str]] = []  # lines that a bad row read beyond its first one, the last first

    def feed() -> Iterator[str]:
        while True:
            line = again.pop() if again else next(lines, None)
            if line is None:
                return
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
