"""docs/train.sbatch with two processes on a real Slurm of this machine: `make test-cluster`."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from electra_lab.jobs.pretraining import execute
from tests.electra_lab.launchers.slurm_here import missing, slurm_here
from tests.electra_lab.parallel.test_commands import assert_equal, file
from tests.helpers import ROOT

why_not = missing() if "ELECTRA_LAB_CLUSTERS" in os.environ else "takes minutes: make test-cluster"
SMALL = ("--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1", "--gpus-per-node=0", "--time=10")


@pytest.mark.skipif(bool(why_not), reason=why_not)
def test_a_job_that_is_told_to_stop_saves_comes_back_and_ends_like_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process gets SIGTERM before step 5: both stop with exit code 75, and the script requeues its job."""
    (tmp_path / "slurm").mkdir()
    written = file(tmp_path / "there", ", step: 4, rank: 1")
    with slurm_here(tmp_path / "slurm") as cluster:
        where = {**os.environ, **cluster, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = ["sbatch", "--parsable", "--output=log.txt", *SMALL, str(ROOT / "docs" / "train.sbatch")]
        done = subprocess.run(
            [*command, str(written), "run"], cwd=tmp_path, env=where, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        deadline, log = time.monotonic() + 300, tmp_path / "log.txt"
        while not (tmp_path / "run" / "report.html").is_file():
            assert time.monotonic() < deadline, log.read_text() if log.exists() else done.stdout
            time.sleep(0.5)
    said = log.read_text()
    assert said.count("stopped and saved after step 6. Resume with: electra-lab resume run") == 1
    assert said.count("resuming after step 6") == said.count("trained in ") == 1
    assert said.count("in 2 processes (ddp)") == 2

    monkeypatch.setattr(execute, "write_report", lambda directory: directory.path / "report.html")
    assert_equal(tmp_path / "run", execute.run(written, [], tmp_path / "one", "cpu"))
