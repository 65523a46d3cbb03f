"""The page of a job that runs: at a price, and whatever happens to it, the job goes on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from electra_lab.jobs import live_page as module
from electra_lab.jobs.live_page import LivePage
from electra_lab.presentation.pages import Unfinished
from registry.errors import DataError, Interrupted


def job(page: LivePage, error: Exception) -> None:
    """Record something twice, and fail."""
    with page:
        page()
        page(now=True)
        raise error


def test_pages_take_two_percent_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, written = SimpleNamespace(now=0.0), list[Unfinished]()
    monkeypatch.setattr(module.time, "monotonic", lambda: clock.now)

    def write(state: Unfinished) -> None:
        written.append(state)
        clock.now += 2.0

    with LivePage(write, pytest.fail) as page:
        for _ in range(1000):
            clock.now += 1.0
            page()
            if len(written) == 1:
                assert written[0].lives  # from the first record on
    assert 0.015 * clock.now < 2.0 * len(written) <= 0.02 * clock.now + 2.0
    assert written[-1].pause == pytest.approx(102, abs=1)
    assert written[-1].old > 5 * 100


def test_a_page_that_cannot_be_written_is_noted_once_and_hides_no_error() -> None:
    said = list[str]()

    def write(_: Unfinished) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match=r"^the first error$"):
        job(LivePage(write, said.append), DataError("the first error"))
    assert len(said) == 1
    assert "No space left" in said[0]


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (Interrupted("stopped"), "interrupted"),
        (DataError("row 3 <b>."), "row 3 <b>."),
        (ZeroDivisionError(), "internal"),
    ],
)
def test_the_last_page_says_how_the_job_ended(error: Exception, how: str) -> None:
    written = list[Unfinished]()
    with pytest.raises(type(error)):
        job(LivePage(written.append, pytest.fail), error)
    assert [state.lives for state in written] == [True, True, False]
    assert how in written[-1].how
