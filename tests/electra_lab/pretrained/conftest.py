"""A pair that was trained for some steps."""

from tests.electra_lab.inference.conftest import pair, run_directory

__all__ = ["pair", "run_directory"]
