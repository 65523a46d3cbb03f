"""Cutting long texts into documents."""

from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.contracts import data
from registry.contracts.data import cut, pieces


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "LONGEST", 10)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []), (" \n ", []), (" short \n", ["short"]), ("ten chars!", ["ten chars!"]),
        ("ten chars!   ", ["ten chars!"]), ("ten chars! more", ["ten chars!", "more"]),
        ("one two three", ["one two", "three"]), ("一二三\u3000四五六七八九十", ["一二三", "四五六七八九十"]),
        ("a" * 23, ["a" * 10, "a" * 10, "aaa"]), ("b " + "a" * 13, ["b", "a" * 10, "aaa"]),
    ],
)  # fmt: skip
def test_long_texts_are_cut_at_white_space(text: str, expected: list[str]) -> None:
    assert pieces(text) == expected


@settings(deadline=None)
@given(parts=st.lists(st.text("ab \n", max_size=30), max_size=8))
def test_cuts_do_not_depend_on_blocks(parts: list[str]) -> None:
    with mock.patch.object(data, "LONGEST", 10):
        found, rest = [], ""
        for part in parts:
            begun, rest = cut(rest + part)
            found += begun
        assert found + pieces(rest) == pieces("".join(parts))
        assert all(0 < len(piece) <= 10 for piece in pieces("".join(parts)))
        assert "".join("".join(pieces("".join(parts))).split()) == "".join("".join(parts).split())
