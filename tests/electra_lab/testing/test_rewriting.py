"""A law that fails shows its values, however its suite was imported first."""

from __future__ import annotations

import importlib

import pytest

from electra_lab import testing


@pytest.mark.parametrize("home", sorted(set(testing._HOME.values())))
def test_pytest_explains_the_assertions_of_every_suite(home: str) -> None:
    module = importlib.import_module(f"electra_lab.testing.{home}")
    assert hasattr(module, "@pytest_ar")  # what pytest adds to a module whose assertions it explains
