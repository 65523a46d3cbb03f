"""The folders of the presentation's tests."""

from tests.electra_lab.presentation.conftest import folder, plain

__all__ = ["folder", "plain"]
