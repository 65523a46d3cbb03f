"""The laws' assertions explain themselves like those of any test file."""

import pytest

pytest.register_assert_rewrite("registry.testing")
