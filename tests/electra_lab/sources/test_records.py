"""Records on lines: the common code of corpora and datasets; the rest is tested with each of them."""

import pytest

from electra_lab.sources.files import BadInput
from electra_lab.sources.records import kind_of, record_in, value_of


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"ab\xff", "byte 2 of the line is not UTF-8"),
        (b"{", "is not JSON (Expecting property name enclosed in double quotes at column 2)"),
        (b"[" * 100_000, "is JSON that Python cannot read"),
        (b"1" * 5000, "is JSON that Python cannot read"),
    ],
)
def test_lines_become_text_and_json(line: bytes, reason: str) -> None:
    assert record_in(' {"a": ["grüße", null]}\r'.encode(), "a:1") == {"a": ["grüße", None]}
    with pytest.raises(BadInput) as refused:
        record_in(line, "a:1")
    assert (refused.value.skipped.place, refused.value.skipped.reason) == ("a:1", reason)


def test_fields_by_their_paths() -> None:
    record = {"a.b": 1, "a": {"b": 2, "c": {"d": None}}}
    assert [value_of(record, "a:1", field) for field in ("a.b", "a.c", "a.c.d")] == [1, {"d": None}, None]
    for field, known in (("a.x", "b, c"), ("x", "a, a.b"), ("a.b.c", "none")):
        with pytest.raises(BadInput, match=rf"^a:1: has no field '{field}'\. Known: {known}\. "):
            value_of(record, "a:1", field)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(None, "null"), (True, "true or false"), (1, "a number"), (0.5, "a number"), ("a", "text"), ([], "a list"),
     (b"", "of type bytes")],
)  # fmt: skip
def test_kinds(value: object, kind: str) -> None:
    with pytest.raises(BadInput, match=f"is {kind}, not an object with fields"):
        value_of(value, "a:1", "b")
    assert kind_of({}) == "an object"
