"""Tables, for pages, for the terminal and for Markdown."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass


def escaped(text: str) -> str:
    """Escape what Markdown would read as marks."""
    for mark in "\\`*<>|":
        text = text.replace(mark, f"\\{mark}")
    return re.sub("^#", r"\\#", " ".join(text.split()))


@dataclass(frozen=True)
class Table:
    """Texts in rows, the first of which names its row.

    prose  titles of further columns that hold text and not numbers
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    prose: Collection[str] = ()

    def text(self, indent: str = "  ", header: bool = True) -> str:
        """Return aligned lines for a terminal."""
        lines = [self.columns, *self.rows] if header else self.rows
        widths = _widths(lines)
        return "\n".join(indent + "  ".join(self._padded(line, widths)).rstrip() for line in lines)

    def markdown(self) -> str:
        """Return the table as Markdown; names of rows may contain any character."""
        rows = [[escaped(name), *cells] for name, *cells in self.rows]
        widths = [max(width, 1) for width in _widths([self.columns, *rows])]
        rule = ["-" * width if self._left(i) else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
        lines = [self._padded(line, widths) for line in (self.columns, rule, *rows)]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def _left(self, column: int) -> bool:
        return column == 0 or self.columns[column] in self.prose

    def _padded(self, line: Sequence[str], widths: Sequence[int]) -> list[str]:
        cells = enumerate(zip(line, widths, strict=True))
        return [cell.ljust(width) if self._left(i) else cell.rjust(width) for i, (cell, width) in cells]


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*lines, strict=True)]
