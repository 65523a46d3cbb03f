"""Records on lines: what corpora and datasets have in common; the rest is tried with each of them."""

from __future__ import annotations

import pytest

from electra_lab.sources.files import BadInput
from electra_lab.sources.records import decoded, kind_of, record_in, value_of


def refusal(found: pytest.ExceptionInfo[BadInput]) -> tuple[str, str]:
    return found.value.skipped.reason, str(found.value).removeprefix(f"a:1: {found.value.skipped.reason}. ")


def test_lines_become_text_and_json() -> None:
    assert decoded("grüße 你好".encode(), "a:1", "Cure.") == "grüße 你好"
    assert record_in(b' {"a": [1, null]}\r', "a:1", "Cure.") == {"a": [1, None]}
    assert record_in(b"null", "a:1", "Cure.") is None
    for line, reason in (
        (b"ab\xff", "byte 2 of the line is not UTF-8"),
        (b"{", "is not JSON (Expecting property name enclosed in double quotes at column 2)"),
        (b"[" * 100_000, "is JSON that Python cannot read"),
    ):
        with pytest.raises(BadInput) as refused:
            record_in(line, "a:1", "Cure.")
        assert refusal(refused) == (reason, "Cure.")


def test_fields_by_their_paths() -> None:
    record = {"a.b": 1, "a": {"b": 2, "c": {"d": None}}}
    assert [value_of(record, "a:1", field, "") for field in ("a.b", "a.c", "a.c.d")] == [1, {"d": None}, None]
    for field, cure in (("a.x", "Known: b, c. Cure."), ("x", "Known: a, a.b. Cure."), ("a.b.c", "Known: none. Cure.")):
        with pytest.raises(BadInput) as refused:
            value_of(record, "a:1", field, "Cure.")
        assert refusal(refused) == (f"has no field '{field}'", cure)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(None, "null"), (True, "true or false"), (1, "a number"), (0.5, "a number"), ("a", "text"), ([], "a list"),
     ({}, "an object"), (b"", "of type bytes")],
)  # fmt: skip
def test_kinds(value: object, kind: str) -> None:
    assert kind_of(value) == kind
    if not isinstance(value, dict):
        with pytest.raises(BadInput, match=f"is {kind}, not an object with fields"):
            value_of(value, "a:1", "b", "")
