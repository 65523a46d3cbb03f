"""Row 4: equal seeds, equal bits; and an explicit notice where other numbers are to be expected.

Tests of jobs/pretraining have the rest: test_stops.py that another seed gives other numbers; test_changes.py, which row
17 counts, that micro-batches change no mask.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.helpers import ROOT
from tests.scorecard.conftest import Score
from tests.scorecard.project import Project, sets


@pytest.mark.scorecard
def test_real_processes_with_another_order_of_hashes(score: Score, project: Project) -> None:
    for salt, workers in (("1", "true"), ("2", "false")):
        words = f"a fresh process, PYTHONHASHSEED={salt}, TOKENIZERS_PARALLELISM={workers}, its own store"
        with project.trial(score, words) as out:
            own = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": salt, "TOKENIZERS_PARALLELISM": workers}
            command = [sys.executable, "-m", "electra_lab", "run", str(project.file), "--out", str(out)]
            command += sets(f"data.store={out.with_name(f'store-{salt}')}")
            environment = {**os.environ, **own, "OMP_NUM_THREADS": "1"}
            ended = subprocess.run(command, cwd=project.folder, env=environment, capture_output=True, text=True)
            assert ended.returncode == 0, ended.stderr[-500:]
            project.is_alike(out)


@pytest.mark.scorecard
def test_what_changes_numbers_is_said(score: Score, project: Project) -> None:
    begun = project.stopped(5)
    with project.trial(score, "resumed with two threads", project.copy(begun)) as out:
        ended = project.resume(out, hooks=[("threads", {"number": 2})]).must(0)
        assert "threads" in ended.err.partition("not bit-exact")[2], "no word of the number of threads"
    with project.trial(score, "resumed unchanged", project.copy(begun)) as out:
        assert "not bit-exact" not in project.resume(out).must(0).err
    for setting in ("train.precision=bf16", "train.parallel=ddp"):
        with project.trial(score, f"resumed with {setting}", project.copy(begun)) as out:
            ended = project.resume(out, *sets(setting))
            assert ended.code == 2 or "not bit-exact" in ended.err, f"no word: {ended}"
