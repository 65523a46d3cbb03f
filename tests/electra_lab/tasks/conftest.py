from pathlib import Path

import pytest

from registry import Pretrained
from tests.electra_lab.tasks.judged import REFORMER, trained


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pretrained, Path]:
    return trained(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="session")
def model(exported: tuple[Pretrained, Path]) -> Pretrained:
    return exported[0]


@pytest.fixture(scope="session")
def hashing(tmp_path_factory: pytest.TempPathFactory) -> Pretrained:
    """A model whose attention depends on the length of its input."""
    return trained(tmp_path_factory.mktemp("hashing"), discriminator=REFORMER)[0]
