"""A pair that was trained for some steps, and a model that transformers has saved."""

from pathlib import Path

import pytest
from transformers import ElectraForPreTraining

from tests.electra_lab.inference.conftest import pair, run_directory
from tests.electra_lab.model.theirs import model, saved

__all__ = ["folder", "pair", "run_directory"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the weights and the config of an ELECTRA. Not to be changed."""
    return saved(model(ElectraForPreTraining), tmp_path_factory.mktemp("model"))
