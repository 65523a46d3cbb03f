"""Optional libraries of trackers."""

from importlib import import_module

import pytest


def needs(*names: str) -> None:
    """Skip the tests of a file if one of the libraries is not installed."""
    for name in names:
        try:
            missing = getattr(import_module(name), "__file__", None) is None
        except ImportError:
            missing = True
        if missing:
            reason = f"{name} is not installed here; `make test-trackers` tests all trackers"
            pytest.skip(reason, allow_module_level=True)
