"""Texts and tables for the terminal, pages and Markdown: numbers, names and facts in words."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from electra_lab.analysis.intervals import Estimate
    from electra_lab.storage.provenance import Data, Environment


Facts = Sequence[tuple[str, str]]  # titles with texts


def fact_lines(title: str, facts: Facts) -> str:
    """Return a title and its facts, one a line, for the terminal."""
    return "\n".join([title, *(f"  {key + ' ':<14}{text}" for key, text in facts)])


def named(label: str) -> str:
    """Quote a label that would run into the sentence."""
    return f'"{label}"' if " " in label else label


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def are(names: Sequence[str]) -> str:
    """`a is`, `a and b are`."""
    return f"{listed(names)} {'is' if len(names) == 1 else 'are'}"


def counted(number: int, noun: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def number(value: float | None, sign: bool = False) -> str:
    """Format four digits, at most four decimals: 0.7123, -0.0021, 5.123, 12,345; a missing number is a dash."""
    if value is None:
        return "-"
    size, plus = abs(value), "+" if sign else ""
    if size == 0:
        return "0"
    if size >= 1e6 or size < 1e-4:
        return f"{value:{plus}.3g}"
    decimals = 3 - math.floor(math.log10(size))
    return f"{value:{plus},.{max(0, min(4, decimals))}f}"


def thousandths(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def short(value: float) -> str:
    """Format 1.2e12 as 1.2T, as people read FLOPs and parameters."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def interval(mean: Estimate) -> str:
    """`[-0.0021, +0.0105]`; empty if there is none."""
    return "" if mean.low is None else f"[{number(mean.low, sign=True)}, {number(mean.high, sign=True)}]"


def shown(value: Any) -> str:
    """Format a value of a config as YAML would."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def within(folder: Path, text: str) -> str:
    """Shorten the names of files in the folder, so that the page can be read anywhere."""
    for above in sorted({str(folder.absolute()), str(folder.resolve())}):
        text = text.replace(f"{above}/", "").replace(above, ".") if len(above) > 1 else text
    return text


def data_facts(data: Data) -> Iterator[tuple[str, str]]:
    """Yield the facts that a run knows of its data, each with a title.

    data     13,010 documents, 1,402,118 tokens to train; validation 341 and 42,013; test 377 and 40,120
    overlap  1.3% of the 13-token runs of validation and test also occur in training text
    """
    documents, tokens = data.documents, data.tokens
    if documents and tokens:
        # A fine-tuning may lack a split.
        parts = [f"{documents['train']:,} documents, {tokens['train']:,} tokens to train"] if "train" in tokens else []
        for split in ("validation", "test"):
            if split in documents and split in tokens:
                parts.append(f"{split} {documents[split]:,} and {tokens[split]:,}")
        yield "data", "; ".join(parts)
    if data.overlap is not None:
        yield "overlap", f"{data.overlap:.1%} of the 13-token runs of validation and test also occur in training text"


def compute(flops: float, paper_flops: float | None) -> str:
    """Return the FLOPs of a training in both conventions; that of a fine-tuning is counted in one."""
    other = "" if paper_flops is None else f"; {paper_flops:.3g} as the ELECTRA paper counts"
    return f"{flops:.3g} FLOPs in total{other}"


def epochs(read: int, rows: int) -> str:
    """Say how often the training rows are read: `0.31, of 51,613 rows each`."""
    passes = read / rows
    return f"{passes:,.2f}, of {rows:,} rows each" if passes >= 0.1 else f"{passes:.2g}, of {rows:,} rows each"


def seconds(number: float) -> str:
    """Format seconds as people say it: `48 s`, `4.2 min`, `37 min`, `2.5 h`, `6.1 days`."""
    for least, size, unit in ((172_800, 86_400, "days"), (5400, 3600, "h"), (60, 60, "min")):
        if number >= least:
            value = number / size
            return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}"
    return f"{number:.0f} s" if number >= 1 else "< 1 s"


def device(environment: Environment) -> str:
    return f"{environment.device}, {environment.precision}, threads: {environment.threads}"


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
        widths = [max(width, 2) for width in _widths([self.columns, *rows])]  # for `-:`, as `:` alone is no rule
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
