"""A pair trained for a few steps."""

from pathlib import Path

import pytest

from electra_lab.inference.opening import load_pair as load
from electra_lab.inference.pair import Pair
from tests.electra_lab.inference.tuned import tuned  # noqa: F401
from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module, run


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    with for_a_module():
        return run(experiment(folder), folder / "run")


@pytest.fixture(scope="session")
def pair(run_directory: Path) -> Pair:
    return load(run_directory, device="cpu")
