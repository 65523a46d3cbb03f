from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module, run


@pytest.fixture(scope="package")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny experiment and a run of it; tests copy it."""
    folder = tmp_path_factory.mktemp("finished")
    with for_a_module():
        run(experiment(folder), folder / "run")
    return folder


@pytest.fixture(scope="package")
def whole(finished: Path) -> Path:
    """A run that was never stopped. Tests must not change it."""
    return finished / "run"


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    """A finished run that a test may change."""
    return Path(shutil.copytree(whole, tmp_path / "run"))
