from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.electra_lab.jobs.finetuning.small import pretrained
from tests.electra_lab.jobs.pretraining.tiny import default_signals


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory of a tiny pair."""
    return pretrained(tmp_path_factory.mktemp("pretrained"))


@pytest.fixture(autouse=True)
def _usual_signals() -> Iterator[None]:
    with default_signals():
        yield
