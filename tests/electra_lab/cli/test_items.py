"""Tables of answers, read by Python's csv module."""

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from electra_lab.cli._items import Table
from registry.errors import DataError

CELLS = st.text(st.one_of(st.sampled_from('\r\n",; \t\0\ufeff\u2028='), st.characters(codec="utf-8")), max_size=6)


def read(lines: list[str]) -> list[list[str]]:
    """Return the cells of lines as they are printed, from a file."""
    written = io.BytesIO("".join(f"{line}\n" for line in lines).encode())
    return [*csv.reader(io.TextIOWrapper(written, "utf-8", newline=""))]


@given(st.lists(CELLS, min_size=1, max_size=3, unique=True), st.data())
@example(["a\rb", "c\nd"], None)
def test_every_text_and_name_comes_back(names: list[str], data: Any) -> None:
    """Also a label, which is the name of a column; a table without rows has the same header."""
    rows = [["x\ry"] * len(names)]
    if data:
        row = st.lists(CELLS, min_size=len(names), max_size=len(names))
        rows = data.draw(st.lists(row, min_size=1, max_size=3))
    table = Table()
    assert read([table.line(dict(zip(names, row, strict=True)), "") for row in rows]) == [names, *rows]
    assert read([Table.row(names)]) == [names]


def test_other_values_are_cells() -> None:
    table = Table()
    first = table.line({"none": None, "half": "\ud800", "list": ["\u00e9", 1], "number": 0.1, "last": True}, "a:1")
    later = table.line({"number": 2}, "a:2")
    with pytest.raises(DataError, match=r"a:3: .*'more'"):  # which no row would have
        table.line({"number": 2, "more": 3}, "a:3")
    values = ["", "?", json.dumps(["\u00e9", 1], ensure_ascii=False), "0.1", "True"]
    assert read([first, later]) == [["none", "half", "list", "number", "last"], values, ["", "", "", "2", ""]]
