"""Real runs of a few steps, without the parts that take most of the time."""

import pytest


@pytest.fixture(autouse=True)
def _no_report(no_report: None) -> None: ...
