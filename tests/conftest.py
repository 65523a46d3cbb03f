"""What holds for all tests: laws that explain themselves, and plug-ins that do not leak from one test to the next."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import registry
from registry import discovery

pytest.register_assert_rewrite("registry.testing")


@pytest.fixture(autouse=True)
def _plugins_end_with_their_test() -> Iterator[None]:
    loaded = dict(discovery._loaded)
    with ExitStack() as stack:
        for each in registry.ALL:
            stack.enter_context(each.isolated())
        yield
    discovery._loaded.clear()
    discovery._loaded.update(loaded)
    for name in [name for name in sys.modules if name.startswith("electra_lab_plugin_")]:
        del sys.modules[name]
