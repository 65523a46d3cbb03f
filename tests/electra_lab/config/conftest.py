"""Components of the schemas' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from registry import backbones, samplers


@pytest.fixture(scope="module")
def plugged() -> Iterator[None]:
    from tests.electra_lab.config.test_json_schema import Plugged, bounded

    with backbones.isolated(), samplers.isolated():
        backbones.register("plugged")(Plugged)
        samplers.register("bounded")(bounded)
        yield
