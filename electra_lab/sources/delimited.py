"""Rows of cells in CSV and TSV files. `place` is file:line."""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from electra_lab.sources.files import LONGEST_LINE, BadInput
from electra_lab.sources.records import check_utf8

Row = list[str] | BadInput
DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t"}
SEP = re.compile(r'"?sep=(.)"?\r?', re.IGNORECASE)  # the first line of Excel's files, which names their delimiter


def rows(
    lines: Iterator[tuple[str, str]], delimiter: str | None, usual: str, fits: Callable[[list[str]], bool]
) -> Iterator[tuple[str, Row]]:
    """Yield like `cells`; without a delimiter, choose it by the first line, or by `sep=` before it.

    It is one with which the first row fits, or else the one that gives the most columns; of several, the usual one.
    """
    first = next(((place, line) for place, line in lines if line.strip()), None)
    if first and (named := SEP.fullmatch(first[1])):
        delimiter, first = delimiter or named[1], next(lines, None)
    if first is None:
        return
    if delimiter is None:
        fit_of_delimiter = {usual: (False, 0)}
        for candidate in (usual, *DELIMITERS.values()):
            _, row = next(cells(iter([first]), candidate), ("", []))
            if not isinstance(row, BadInput):
                fit_of_delimiter[candidate] = fits(row), len(row)
        delimiter = max(fit_of_delimiter, key=fit_of_delimiter.__getitem__)
    yield from cells(chain([first], lines), delimiter)


def named(rows: Iterator[tuple[str, Row]], names: Sequence[str]) -> Iterator[tuple[str, dict[str, str] | BadInput]]:
    """Yield the places and the cells of rows by the names of their columns; for a bad row its error."""
    for place, row in rows:
        if isinstance(row, BadInput):
            yield place, row
        elif len(row) != len(names):
            yield place, BadInput(place, f"has {columns(len(row))}, but there are names for {len(names)}")
        else:
            yield place, dict(zip(names, row, strict=True))


def columns(number: int) -> str:
    return "1 column" if number == 1 else f"{number} columns"


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
