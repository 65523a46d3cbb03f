"""Row 15: no network, and a read-only home directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.scorecard.conftest import Score
from tests.scorecard.others import count_tests
from tests.scorecard.project import Project, sets
from tests.scorecard.rows import FULL

# Not even root, for whom no folder is read-only, can create a folder in /proc.
NOWHERE = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HF_HOME", "MPLCONFIGDIR"), "/proc/nowhere")
OFFLINE = ("no_network", {})


def test_from_data_to_report(score: Score, project: Project) -> None:
    out, store = project.new(), project.folder / "offline"
    verbs = {
        "check": (project.file,), "prepare": (project.file, *sets(f"data.store={store}"), "--inspect"),
        "run": (project.file, "--out", out), "resume": (out,), "report": (out,),
        "export": (out, project.folder / "offline-export"),
    }  # fmt: skip
    for verb, arguments in verbs.items() if FULL else [("run", verbs["run"])]:
        with score.trial(verb):
            ended = project.lab(verb, *arguments, cwd=project.folder, hooks=[OFFLINE], environment=NOWHERE).must(0)
            assert "connection attempted" not in ended.err, ended
    with score.trial("the run is that of a machine with network"):
        project.is_alike(out)


@pytest.mark.scorecard
def test_trackers_that_fail_stop_nothing(score: Score, tmp_path: Path) -> None:
    count_tests(score, tmp_path, "tests/electra_lab/jobs/pretraining/test_track.py")


@pytest.mark.scorecard
def test_without_any_network_device(score: Score, project: Project) -> None:
    unshare = ["unshare", "--map-root-user", "--net"]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("unshare cannot take the network away here")
    with project.trial(score, "a real process in a name space without network") as out:
        command = [*unshare, sys.executable, "-m", "electra_lab", "run", str(project.file), "--out", str(out)]
        environment = {**os.environ, **NOWHERE, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, cwd=project.folder, env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr[-500:]
        project.is_alike(out)
