"""BLiMP: paradigms, fields, ids, and malformed lines."""

from pathlib import Path
from typing import Any

import pytest

from electra_lab.datasets.blimp import Blimp
from registry import PairExample
from registry.errors import DataError
from tests.electra_lab.datasets.written import json_lines, write


def pair(good: Any, bad: Any, **fields: Any) -> dict[str, Any]:
    return {"sentence_good": good, "sentence_bad": bad, **fields}


def test_paradigms_fields_and_ids(tmp_path: Path) -> None:
    known = {"UID": "wh_island", "field": "syntax", "linguistics_term": "island_effects", "pair_id": 7}
    write(tmp_path / "deep" / "wh.jsonl", json_lines(pair("a", "b", **known), pair("c", "d", **known)))
    write(tmp_path / "own.jsonl", json_lines(pair("e", "f")))
    write(tmp_path / "README.json", "no")
    deep, own = tmp_path / "deep" / "wh.jsonl", tmp_path / "own.jsonl"
    expected = [
        PairExample("a", "b", "wh_island", "syntax", "wh_island_0", f"{deep}:1"),
        PairExample("c", "d", "wh_island", "syntax", "wh_island_1", f"{deep}:2"),
        PairExample("e", "f", "own", "", "own_0", f"{own}:1"),
    ]
    assert Blimp(folder=tmp_path).splits == ["test"]
    assert list(Blimp(folder=tmp_path).read("test")) == expected
    terms = [pair.field for pair in Blimp(folder=tmp_path, group_by="linguistics_term").read("test")]
    assert terms == ["island_effects", "island_effects", ""]


def test_one_paradigm_in_two_files(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / f"{name}.jsonl", json_lines(pair("x", "y", UID="one")))
    assert [pair.id for pair in Blimp(folder=tmp_path).read("test")] == ["one_0", "one_1"]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"sentence_good": "a"}, "has no field 'sentence_bad'"),
        (pair("a", None), "the field 'sentence_bad' is null, not text."),
        (pair(["a"], "b"), "the field 'sentence_good' is a list, not text."),
        (pair("a", "b", UID=3), "the field 'UID' is a number, not text."),
        (pair("a", "b", field=None), "the field 'field' is null, not text."),
        ([], "is a list, not an object with fields."),
    ],
)
def test_a_wrong_line_is_named(record: Any, reason: str, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "\n" + json_lines(pair("a", "b"), record))
    with pytest.raises(DataError, match=f"^{tmp_path / 'a.jsonl'}:3: {reason}"):
        list(Blimp(folder=tmp_path).read("test"))
