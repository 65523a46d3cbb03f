"""Rows of one text or of two."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from electra_lab.tasks._texts import text_rows
from registry import TextExample
from tests.electra_lab.tasks.judged import Letters

LETTERS = st.text("abcdefg", max_size=9)


@given(first=LETTERS, second=st.none() | LETTERS, length=st.integers(5, 20))
def test_the_longer_text_loses_one_token_after_the_other_and_of_equal_ones_the_second(
    first: str, second: str | None, length: int
) -> None:
    """Rows of even and odd room, token by token."""
    one, other = first, second or ""
    special = 2 if second is None else 3
    while len(one) + len(other) + special > length:
        one, other = (one[:-1], other) if len(one) > len(other) else (one, other[:-1])
    [[row]] = text_rows([TextExample(first, second, 1.0)], Letters(), length, [1.0])
    ids = [[1, *(ord(letter) - 93 for letter in one), 2]]
    if second is not None:
        ids.append([*(ord(letter) - 93 for letter in other), 2])
    assert row.tokens == [token for part in ids for token in part]
    assert row.segments == [number for number, part in enumerate(ids) for _ in part]
    assert row.keep == ((one, other) != (first, second or ""))
    assert row.labels == {"label": 1.0}
