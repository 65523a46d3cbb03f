"""What docs/findings.md says about an ablation stands in the files of numbers beside it."""

from __future__ import annotations

import csv
import re
import statistics
from collections import defaultdict
from pathlib import Path

import pytest
from scipy import stats

DOCS = Path(__file__).parents[1] / "docs"
TABLES = sorted((DOCS / "findings").glob("*.md"))
MEAN = re.compile(r"(\d+\.\d+) ± (\d+\.\d+)")
DIFFERENCE = re.compile(r"[+-]\d+\.\d+ \[[+-]\d+\.\d+, [+-]\d+\.\d+\]")


def cells_of(table: Path) -> dict[tuple[str, str], list[float]]:
    """Return the values of the seeds, by metric and variant."""
    values = defaultdict(list)
    with table.with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value and re.fullmatch(r"-?[\d.e+-]+", value):
                    values[name, row["variant"]].append(float(value))
    return values


def section_about(table: Path) -> str:
    sections = re.split(r"^#+ ", (DOCS / "findings.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    [section] = [s for s in sections if f"(findings/{table.name})" in s]
    return section


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.stem)
def test_the_means_are_those_of_the_cells(table: Path) -> None:
    values, seen = cells_of(table), 0
    for part in table.read_text(encoding="utf-8").split("\n## ")[1:]:
        metric = part.split(",")[0].splitlines()[0]
        for line in part.splitlines():
            columns = [column.strip() for column in line.strip("|").split("|")]
            if (metric, columns[0]) in values and (found := MEAN.fullmatch(columns[2])):
                of_seeds = values[metric, columns[0]]
                half = stats.t.ppf(0.975, len(of_seeds) - 1) * statistics.stdev(of_seeds) / len(of_seeds) ** 0.5
                for text, value in zip(found.groups(), (statistics.mean(of_seeds), half), strict=True):
                    assert f"{value:.{len(text.split('.')[1])}f}" == text, (metric, columns[0])
                assert columns[1] == str(len(of_seeds))
                seen += 1
    assert seen


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.stem)
def test_the_text_has_the_numbers_of_its_table(table: Path) -> None:
    known, rows = table.read_text(encoding="utf-8"), [s for s in section_about(table).splitlines() if s.startswith("|")]
    text = "\n".join(rows).replace("**", "")
    numbers = [match.group() for pattern in (MEAN, DIFFERENCE) for match in pattern.finditer(text)]
    assert numbers
    assert [number for number in numbers if number not in known] == []
