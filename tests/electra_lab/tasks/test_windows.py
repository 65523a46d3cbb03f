"""Windows over long texts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_lab.tasks._windows import Window, windows

totals, rooms, strides = st.integers(0, 120), st.integers(1, 50), st.integers(1, 60)


@settings(deadline=None)
@given(total=totals, room=rooms, stride=strides)
def test_windows_cover_the_text(total: int, room: int, stride: int) -> None:
    found = windows(total, room, stride)
    assert {place for window in found for place in range(window.first, window.end)} == set(range(total))
    assert all(window.end - window.first <= room for window in found)
    assert len(found) == 1 or all(window.end < total for window in found[:-1]), "an unnecessary window"


@settings(deadline=None)
@given(total=totals, room=rooms, stride=strides)
def test_each_token_has_one_best_window_with_the_most_context(total: int, room: int, stride: int) -> None:
    """The context reaches a quarter of a window of four tokens or more, or the end of the text."""
    found = windows(total, room, stride)
    assert [place for window in found for place in window.best] == list(range(total))
    for window in found:
        for place in window.best:
            contexts = {w: min(place - w.first, w.end - 1 - place) for w in found if w.first <= place < w.end}
            assert contexts[window] == max(contexts.values())
            assert room < 4 or place - window.first >= min(place, room // 4)
            assert room < 4 or window.end - place >= min(total - place, room // 4)


@pytest.mark.parametrize(
    ("total", "room", "stride", "expected"),
    [
        (0, 5, 2, [(0, 0, 0, 0)]),
        (5, 5, 2, [(0, 5, 0, 5)]),
        (6, 5, 2, [(0, 5, 0, 4), (2, 6, 4, 6)]),
        (12, 8, 3, [(0, 8, 0, 6), (3, 11, 6, 9), (6, 12, 9, 12)]),
        (12, 8, 100, [(0, 8, 0, 6), (4, 12, 6, 12)]),
    ],
)
def test_by_hand(total: int, room: int, stride: int, expected: list[tuple[int, int, int, int]]) -> None:
    assert windows(total, room, stride) == [Window(first, end, range(*best)) for first, end, *best in expected]
