"""JSON lines: fields, labels of every type, and malformed lines."""

import re
from pathlib import Path
from typing import Any

import pytest

from electra_lab.datasets.json_lines import JsonLines
from registry import TextExample
from registry.errors import DataError
from tests.electra_lab.datasets.written import json_lines, write


def read(folder: Path, content: str, split: str = "test", **options: Any) -> list[TextExample]:
    paths: dict[str, Any] = {split: write(folder / "a.jsonl", content)}
    return list(JsonLines(**paths, held_out=0, **options).read(split))


def test_fields_by_name(tmp_path: Path) -> None:
    record = {"a": {"one": " x ", "two": "y"}, "c.d": 3, "n": 12}
    found = read(tmp_path, json_lines(record, record | {"n": 13}), text="a.one", pair="a.two", label="c.d", id="n")
    place = str(tmp_path / "a.jsonl")
    assert found == [TextExample("x", "y", "3", "12", f"{place}:1"), TextExample("x", "y", "3", "13", f"{place}:2")]


@pytest.mark.parametrize(
    ("value", "word", "number"),
    [
        ("a ", "a", "is 'a', not"),
        (1, "1", 1.0),
        (True, "true", "is true or false, not"),
        (False, "false", "is true or false, not"),
        ("", None, None),
        (None, None, None),
        ("2", "2", 2.0),
        (1.0, "1", 1.0),  # the class that 1 is
        (0.0, "0", 0.0),
        (1.5, r"is a number, not a word\. Write label_type: number\.", 1.5),
        ([], "is a list, not", "is a list, not"),
        ({}, "is an object, not", "is an object, not"),
    ],
)
def test_labels(tmp_path: Path, value: Any, word: str | None, number: float | str | None) -> None:
    """Labels as words and as numbers; an expectation that begins with "is" is an error message."""
    for label_type, expected in (("word", word), ("number", number)):
        line = json_lines({"text": "a", "label": value})
        if str(expected).startswith("is "):
            with pytest.raises(DataError, match=rf"a\.jsonl:1: the field 'label' {expected}"):
                read(tmp_path, line, label_type=label_type)
        else:
            [found] = read(tmp_path, line, label_type=label_type)
            assert (found.label, type(found.label)) == (expected, type(expected))


def test_only_the_test_may_lack_labels(tmp_path: Path) -> None:
    found = read(tmp_path, json_lines({"text": "a"}, {"text": "b", "label": 1}))
    assert [example.label for example in found] == [None, "1"]
    for split in ("train", "validation"):
        with pytest.raises(DataError, match=r"a\.jsonl:1: has no field 'label'\. Did you mean 'lable'\?"):
            read(tmp_path, json_lines({"text": "a", "lable": 1}), split)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "is not JSON (Expecting property name enclosed in double quotes at column 2)."),
        ("{}", "has no field 'text'. Known: none."),
        ('{"text": 1}', "the field 'text' is a number, not text."),
        ('{"text": "\\ud800"}', "the field 'text' has half of a character (\\ud800 to \\udfff)."),
        ('{"text": "a", "pair": null}', "the field 'pair' is null, not text."),
        ('{"text": "a", "pair": "b", "id": 1.5}', "the field 'id' is a number, so it cannot be an id."),
        ('{"text": "a", "pair": "b", "id": true}', "the field 'id' is true or false, so it cannot be an id."),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    content = json_lines({"text": "a", "pair": "b", "id": 0}) + " \t\n" + line
    with pytest.raises(DataError, match=re.escape(f"{tmp_path / 'a.jsonl'}:3: {reason} Correct it.")):
        read(tmp_path, content, pair="pair", id="id")


def test_the_texts_decide_what_is_held_out(tmp_path: Path) -> None:
    """A pair that occurs twice, with different labels, must not be in both train and validation."""
    records = [{"text": f"a{n % 50}", "pair": f"b{n % 40}", "label": n} for n in range(800)]
    dataset = JsonLines(train=write(tmp_path / "a.jsonl", json_lines(*records)), pair="pair", held_out=0.4)
    train = {(example.text, example.pair) for example in dataset.read("train")}
    validation = {(example.text, example.pair) for example in dataset.read("validation")}
    assert not train & validation
    assert len(train | validation) == 200
    assert {text for text, _ in train} & {text for text, _ in validation}  # for pairs, both texts count
