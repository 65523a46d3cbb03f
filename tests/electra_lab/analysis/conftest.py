"""Fixtures shared with the tests of presentation."""

from tests.electra_lab.presentation.conftest import folder, plain

__all__ = ["folder", "plain"]
