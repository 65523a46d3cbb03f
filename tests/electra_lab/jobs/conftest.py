from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.electra_lab.jobs.pretraining.tiny import default_signals


@pytest.fixture(autouse=True)
def _usual_signals() -> Iterator[None]:
    with default_signals():
        yield
