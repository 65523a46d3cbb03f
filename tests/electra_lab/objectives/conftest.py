"""Real runs of a few steps, without what takes most of their time."""

from __future__ import annotations

import pytest

from electra_lab.jobs.pretraining import execute


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plots."""
    monkeypatch.setattr(execute, "write_report", lambda directory: directory.path)
