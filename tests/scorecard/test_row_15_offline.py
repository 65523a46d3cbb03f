"""Row 15: no network, and a home directory that cannot be written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.helpers import ROOT
from tests.scorecard.conftest import Score
from tests.scorecard.lab import Lab
from tests.scorecard.project import Project
from tests.scorecard.rows import FULL

# Nobody can create a folder in /proc, not even root, for whom no folder is read-only.
NOWHERE = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HF_HOME", "MPLCONFIGDIR"), "/proc/nowhere")
OFFLINE = ("no_network", {})
TRACKER = """\
from registry import trackers


@trackers.register("broken_{when}")
class Broken:
    "Fail."

    rewinds = False

    def check(self):
        pass

    def start(self, run, /):
        self._fail("start")
        return "1"

    def record(self, step, values, /):
        self._fail("record")

    def close(self, outcome, /):
        self._fail("close")

    def _fail(self, here):
        if here == "{when}":
            raise ConnectionError("the hub cannot be reached")
"""


def test_from_data_to_report(score: Score, project: Project) -> None:
    out, page = project.new(), project.folder / "offline"
    verbs = {
        "check": (project.file,), "prepare": (project.file, "--set", f"data.store={page}", "--inspect"),
        "run": (project.file, "--out", out), "resume": (out,), "report": (out,),
        "export": (out, project.folder / "offline-export"),
    }  # fmt: skip
    for verb, arguments in verbs.items() if FULL else [("run", verbs["run"])]:
        with score.trial(verb):
            ended = project.lab(verb, *arguments, cwd=project.folder, hooks=[OFFLINE], environment=NOWHERE)
            assert ended.code == 0, ended
            assert not ended.traced, ended
            assert "connection attempted" not in ended.err, ended
    with score.trial("the run is that of a machine with network"):
        project.is_alike(out)


@pytest.mark.scorecard
def test_trackers_that_fail_stop_nothing(score: Score, lab: Lab, project: Project) -> None:
    for when in score.chosen(("start", "record", "close")):
        out, plugin = project.new(), project.folder / f"broken_{when}.py"
        plugin.write_text(TRACKER.format(when=when))
        with score.trial(f"a tracker that fails in {when}"):
            more = ("--set", f"imports=[{plugin}]", "--set", f"trackers=[{{type: broken_{when}}}]")
            ended = project.run(out, *more)
            assert ended.code == 0, ended
            assert not ended.traced, ended
            assert "cannot be reached" in ended.err, f"no word of it: {ended}"
            project.is_alike(out)
            shutil.rmtree(out)


@pytest.mark.scorecard
def test_without_any_network_device(score: Score, project: Project) -> None:
    unshare = ["unshare", "--map-root-user", "--net"]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("unshare cannot take the network away here")
    out = project.new()
    with score.trial("a real process in a name space without network"):
        command = [*unshare, sys.executable, "-m", "electra_lab", "run", str(project.file), "--out", str(out)]
        environment = {**os.environ, **NOWHERE, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(
            command, cwd=project.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr[-500:]
        project.is_alike(out)
