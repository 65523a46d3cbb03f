"""Runs without what takes most of their time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from electra_lab.jobs.pretraining import execute
from tests.electra_lab.jobs.pretraining.tiny import default_signals


@pytest.fixture(autouse=True)
def _usual_signals() -> Iterator[None]:
    with default_signals():
        yield


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no charts."""
    monkeypatch.setattr(execute, "write_report", lambda directory: directory.path)
