"""Row 18: run directories of earlier releases, which are in tests/data, and of future releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scorecard.conftest import Score
from tests.scorecard.others import count_tests


@pytest.mark.scorecard
def test_run_directories_of_other_releases(score: Score, tmp_path: Path) -> None:
    """Those of earlier releases are resumed to the same end, reported and exported; future ones are refused by name."""
    count_tests(score, tmp_path, "tests/test_golden.py", "tests/electra_lab/jobs/pretraining/test_provenance.py")
