"""JSON lines: fields, keys, and malformed lines."""

import gzip
import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from electra_lab.corpora.json_lines import JsonLines
from electra_lab.sources import files as sources
from registry import Document, Skipped
from registry.errors import DataError


def corpus(folder: Path, content: str | bytes, **options: Any) -> JsonLines:
    (folder / "a.jsonl").write_bytes(content.encode() if isinstance(content, str) else content)
    return JsonLines(paths=[folder / "a.jsonl"], **options)


def test_text_fields_and_keys(tmp_path: Path) -> None:
    line = '{"text": "one", "id": 7, "a.b": "flat", "a": {"b": "no", "c": {"d": "deep", "e": "book"}}}\n'
    assert list(corpus(tmp_path, '\ufeff{"text": "\ufeffone"}\n')) == ["\ufeffone"]
    assert list(corpus(tmp_path, line, key="id")) == [Document("one", "7")]
    assert list(corpus(tmp_path, line, field="a.c.d", key="a.c.e")) == [Document("deep", "book")]
    empty = '\n{"text": "one"}\n \t\n{"text": ""}\r\n\r\n{"text": " \\n"}\n{"text": " two "}'
    assert list(corpus(tmp_path, empty)) == ["one", "two"]
    options: list[Any] = [{}, {"key": "a"}, {"field": "a"}, {"on_error": "skip"}]
    assert len({corpus(tmp_path, line, **option).fingerprint() for option in options}) == 4


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": "a"', "is not JSON (Expecting ',' delimiter at column 13)"),
        ('{"text": "a"} {"text": "b"}', "is not JSON (Extra data at column 15)"),
        (b'{"text": "caf\xe9"}', "byte 13 of the line is not UTF-8"),
        ("[" * 100_000, "is JSON that Python cannot read"),
        ('{"text": ' + "1" * 5000 + "}", "is JSON that Python cannot read"),
        ('["a"]', "is a list, not an object with fields"),
        ("{}", "has no field 'text'"),
        ('{"text": null}', "the field 'text' is null, not text"),
    ],
)
def test_a_wrong_line_is_named_or_skipped(tmp_path: Path, line: str | bytes, reason: str) -> None:
    raw = line.encode() if isinstance(line, str) else line
    content = b'{"text": "one"}\n\n' + raw + b'\n{"text": "two"}\n'
    place = f"{tmp_path / 'a.jsonl'}:3"
    with pytest.raises(DataError, match=rf"^{re.escape(f'{place}: {reason}. ')}.*set on_error: skip\.$"):
        list(corpus(tmp_path, content))
    assert list(corpus(tmp_path, content, on_error="skip")) == ["one", Skipped(place, reason), "two"]


@pytest.mark.parametrize(
    ("key", "reason"),
    [("id", "'id' is null"), ("tags", "'tags' is a list"), ("yes", "'yes' is true or false"),
     ("idd", r"'idd'\. Did you mean 'id'\? Known: id, tags, text, yes\."), ("text.id", r"'text\.id'\. Known: none\.")],
)  # fmt: skip
def test_a_wrong_key_is_named(tmp_path: Path, key: str, reason: str) -> None:
    with pytest.raises(DataError, match=rf"a\.jsonl:1: .*{reason}"):
        list(corpus(tmp_path, '{"text": "a", "id": null, "tags": [], "yes": true}', key=key))


def test_a_line_that_is_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LONGEST_LINE", 1 << 21)
    content = b'{"text": "one"}\n{"text": "' + b"a" * (3 << 20)
    with pytest.raises(DataError, match=r"a\.jsonl:2: the line has more than 2 MiB\."):
        list(corpus(tmp_path, content))
    found = list(corpus(tmp_path, content, on_error="skip"))
    place = f"{tmp_path / 'a.jsonl'}:2"
    assert found == ["one", Skipped(place, "the line has more than 2 MiB", unit="ends of files")]


OBJECTS: list[dict[str, Any]] = [
    {"text": 'one, "\x85\u2028[{}]" \\ é 🙂', "id": 1}, {"id": 2, "text": "two", "more": [{"text": "no"}, []]},
    {"text": "three", "id": 3},
]  # fmt: skip
TEXTS = [str(record["text"]) for record in OBJECTS]


@pytest.mark.parametrize("block", [40, 1 << 20])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    "content",
    [
        json.dumps(OBJECTS),
        "[\n" + ",\n".join(map(json.dumps, OBJECTS)) + "\n]\n",
        json.dumps(OBJECTS, ensure_ascii=False, indent=2) + "\n",
        "\ufeff \n" + json.dumps(OBJECTS, indent=2, separators=(" ,", " : ")),
        "\n".join(json.dumps(record, indent="\t") for record in OBJECTS),
        "\n".join(map(json.dumps, OBJECTS)) + "\n",
        "\n\n".join(map(json.dumps, OBJECTS)),
    ],
)
def test_arrays_lines_and_line_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, newline: str, content: str
) -> None:
    monkeypatch.setattr(sources, "BLOCK", block)
    raw = content.replace("\n", newline).encode()
    assert list(corpus(tmp_path, raw)) == TEXTS
    assert [item.key for item in corpus(tmp_path, raw, key="id") if isinstance(item, Document)] == ["1", "2", "3"]
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(raw))
    assert list(JsonLines(paths=[tmp_path / "a.json.gz"])) == TEXTS


@pytest.mark.parametrize(
    ("content", "kept", "line", "unit"),
    [
        (b'[\n {"text": "a"},\n {"text": 3},\n {"text": "b"}\n]', ["a", "b"], 3, "records"),
        (b'[\n {"text": "a"},\n "text",\n {"text": "b"}\n]', ["a", "b"], 3, "records"),
        (b'[\n {"text": "a"},\n {"text": "caf\xe9"},\n {"text": "b"}\n]', ["a", "b"], 3, "records"),
        (b'[\n {"text": "a"},\n {"text": "b"},\n {"text": "c', ["a", "b"], 4, "ends of files"),
        (b'[\n {"text": "a"},\n {"text": "b"},\n', ["a", "b"], 4, "ends of files"),
        (b'[\n {"text": "a"},\n {"text": oops},\n {"text": "b"}\n]', ["a"], 3, "ends of files"),
        (b'[\n {"text": "a"},\n {"text": ' + b"1" * 5000 + b'},\n {"text": "b"}\n]', ["a"], 3, "ends of files"),
        (b'[{"text": "a"}, {"text": "b"}] rubbish', ["a", "b"], 1, "ends of files"),
        (b'{\n"text": "a"\n}\n{\n"text": "b"\n}\n{\n"te', ["a", "b"], 7, "ends of files"),
    ],
)
def test_damage_in_an_array(tmp_path: Path, content: bytes, kept: list[str], line: int, unit: str) -> None:
    with pytest.raises(DataError, match=rf"a\.jsonl:{line}: "):
        list(corpus(tmp_path, content))
    found = list(corpus(tmp_path, content, on_error="skip"))
    assert [item for item in found if isinstance(item, str)] == kept
    skipped = [(item.place, item.unit) for item in found if isinstance(item, Skipped)]
    assert skipped == [(f"{tmp_path / 'a.jsonl'}:{line}", unit)]


def test_an_array_is_read_in_bounded_memory(tmp_path: Path) -> None:
    text = "word " * 200
    with (tmp_path / "a.json").open("w") as stream:
        stream.write("[" + ", ".join([json.dumps({"text": text})] * 15_000) + "]")  # 15 MB on one line
    tracemalloc.start()
    try:
        assert sum(1 for _ in JsonLines(paths=[tmp_path / "a.json"])) == 15_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12e6, f"{peak / 1e6:.0f} MB for 15 MB of text"


def test_a_damaged_file_that_changes_is_said_to_change(tmp_path: Path) -> None:
    """A file that is still being written needs no correction."""
    (tmp_path / "a.json").write_text('{"text": "one"}\n{"text": \n{"text": "two"}\n')
    for on_error in ("stop", "skip"):
        made = JsonLines(paths=[tmp_path / "a.json"], on_error=on_error)
        made.fingerprint()
        (tmp_path / "a.json").write_text((tmp_path / "a.json").read_text() + "o")
        with pytest.raises(DataError, match=r"a\.json: changed while it was read\."):
            list(made)
