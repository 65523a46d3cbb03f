"""Real runs of a few steps, without what takes most of their time."""

import pytest


@pytest.fixture(autouse=True)
def _no_report(no_report: None) -> None: ...
