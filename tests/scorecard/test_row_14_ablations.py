"""Row 14: ablations whose launchers and workers are killed. tests/electra_lab/jobs/sweeps has the small form."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scorecard.conftest import Score
from tests.scorecard.others import count_tests


@pytest.mark.scorecard
def test_through_kills(score: Score, tmp_path: Path) -> None:
    """24 cells on four workers of two launchers with 20 kills; and an ablation that is killed, then stopped."""
    tests = ("test_24_cells_through_20_kills", "test_killed_or_stopped_it_goes_on_and_ends_the_same")
    count_tests(score, tmp_path, *(f"benchmarks/soak.py::{test}" for test in tests), ELECTRA_LAB_SOAK="1")


@pytest.mark.scorecard
def test_cells_that_fail(score: Score, tmp_path: Path) -> None:
    """The other cells go on, and the exit code is 7."""
    count_tests(score, tmp_path, "tests/electra_lab/jobs/sweeps/test_run_failures.py")
