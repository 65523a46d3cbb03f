"""The numbers on the pages of the studies match the data files next to them."""

from __future__ import annotations

import csv
import re
import statistics
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

DOCS = Path(__file__).parents[1] / "docs"
STUDIES = {page.stem: page.read_text(encoding="utf-8") for page in sorted((DOCS / "findings").glob("*.md"))}
FOLDED = re.compile(r'<details markdown id="(\w+)">\n(.+?)</details>', flags=re.DOTALL)
TABLES = {name: text for page in STUDIES.values() for name, text in FOLDED.findall(page)}  # by the name of their cells
ALONE = {"crossover_4e14", "crossover_random", "crossover_rates", "family_rates", "fast_and_plain",
         "fast_and_plain_bert", "learning_curves", "long_rows_local_heads_pilot",
         "long_rows_no_local_heads"}  # fmt: skip
MEAN = re.compile(r"(\d+\.\d+) ± (\d+\.\d+)")
DIFFERENCE = re.compile(r"[+-]\d+\.\d+ \[[+-]\d+\.\d+, [+-]\d+\.\d+\]")


def cells_of(name: str) -> dict[tuple[str, str], list[float]]:
    """Return the values of the seeds, by metric and variant."""
    values = defaultdict(list)
    with (DOCS / "findings" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            for metric, value in row.items():
                if value and re.fullmatch(r"-?[\d.e+-]+", value):
                    values[metric, row["variant"]].append(float(value))
    return values


def numbers_of(rows: str) -> list[str]:
    text = "\n".join(row for row in rows.splitlines() if row.startswith("|")).replace("**", "")
    return [match.group() for pattern in (MEAN, DIFFERENCE) for match in pattern.finditer(text)]


def test_all_cells_have_their_tables() -> None:
    assert {path.stem for path in (DOCS / "findings").glob("*.csv")} == TABLES.keys() | ALONE


@pytest.mark.parametrize("name", TABLES)
def test_the_means_are_those_of_the_cells(name: str) -> None:
    values, seen = cells_of(name), 0
    for part in TABLES[name].split("\n#### ")[1:]:
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


@pytest.mark.parametrize("page", [page for page, text in STUDIES.items() if FOLDED.search(text)])
def test_the_text_has_the_numbers_of_its_tables(page: str) -> None:
    folded = "\n".join(text for _, text in FOLDED.findall(STUDIES[page]))
    numbers = numbers_of(FOLDED.sub("", STUDIES[page]))
    assert numbers
    assert [number for number in numbers if number not in folded] == []


def test_the_rates_of_the_crossover_are_the_means_of_their_cells() -> None:
    cells = defaultdict(list)
    with (DOCS / "findings" / "crossover_rates.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            cells[row["variant"], float(row["learning_rate"])].append(float(row["chunking"]))
    table = STUDIES["crossover_plan"].partition("## Rates for the smaller budgets")[2]
    head, _, *rows = [line.strip("| ").split("|") for line in table.splitlines() if line.startswith("|")]
    shown = {}
    for name, *values in rows:
        for rate, value in zip(head[-len(values) :], values, strict=True):
            if value.strip():
                shown[name.replace("`", "").strip(), float(rate)] = value.strip(" *")
    assert shown == {key: f"{np.mean(values):.3f}".lstrip("0") for key, values in cells.items()}
    assert all(len(values) == 2 for values in cells.values())
