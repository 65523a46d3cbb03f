"""A pair of transformers."""

from pathlib import Path
from typing import Any

import pytest

from tests.electra_lab.assembly.initial_weights import discriminator, generator


@pytest.fixture
def pair(tmp_path: Path) -> dict[str, Any]:
    """Models of transformers that share nothing, saved in the folder `pair`."""
    return {
        "discriminator": discriminator(tmp_path / "pair" / "discriminator"),
        "generator": generator(tmp_path / "pair" / "generator"),
    }
