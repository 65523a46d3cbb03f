"""Row 5: two processes by gloo, DDP and FSDP2. The tests in tests/electra_lab/parallel are part of `make test`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scorecard.conftest import Score
from tests.scorecard.others import count_tests


@pytest.mark.scorecard
def test_two_processes(score: Score, tmp_path: Path) -> None:
    folder = "tests/electra_lab/parallel"
    count_tests(score, tmp_path, f"{folder}/test_steps.py", f"{folder}/test_commands.py", ELECTRA_LAB_PARALLEL="1")
