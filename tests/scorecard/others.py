"""Rows whose laws have tests elsewhere: `make scorecard` runs these and counts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from tests.helpers import ROOT
from tests.scorecard.conftest import Score


def count_tests(score: Score, folder: Path, *tests: str, **environment: str) -> None:
    """Run test files in a separate process; each test is a trial."""
    found = folder / "tests.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={found}", *tests]
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    surroundings.pop("ELECTRA_LAB_SCORECARD", None)
    subprocess.run(command, cwd=ROOT, env=surroundings, capture_output=True, check=False)
    assert found.exists(), f"pytest could not run {tests}"
    for test in ElementTree.parse(found).iter("testcase"):
        if test.find("skipped") is not None:
            continue
        wrong = test.find("failure") if test.find("failure") is not None else test.find("error")
        with score.trial(f"{test.get('classname')}::{test.get('name')}"):
            assert wrong is None, (wrong.get("message") or "failed") if wrong is not None else ""
