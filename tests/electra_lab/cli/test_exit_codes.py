"""Exit codes by a real cause, through the real command line; 2 and 3 are in test_cli, 7 with ablations."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from electra_lab.cli import main
from electra_lab.jobs import signals
from electra_lab.jobs.pretraining import execute
from electra_lab.presentation.console import Console
from tests.electra_lab.jobs.pretraining.tiny import default_signals, experiment, lines, lose_checkpoints, spying
from tests.helpers import ROOT

SHORT = {"train": "{steps: 4, batch_size: 2, precision: fp32}", "evaluate": "{examples: 0}"}


@pytest.fixture(autouse=True)
def _no_report(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "report" not in request.node.name:
        monkeypatch.setattr(execute, "write_report", lambda directory: directory.path / "report.html")


@pytest.fixture(autouse=True)
def _usual_signals() -> Iterator[None]:
    with default_signals():
        yield


def spy(folder: Path, options: str = "") -> Path:
    return spying(folder, objective=f"{{type: spy{options}}}", **SHORT)


def test_0_a_run_that_ends_prints_its_directory_and_writes_its_report(lab: Any, tmp_path: Path) -> None:
    code, out, err = lab("run", experiment(tmp_path / "there", **SHORT), "--out", tmp_path / "run", "--device", "cpu")
    assert (code, out) == (0, f"{tmp_path}/run\n")
    assert (tmp_path / "run" / "report.html").is_file()
    assert err.count("\n") > 5
    code, out, err = lab("resume", tmp_path / "run", "--device", "cpu")
    assert (code, out) == (0, f"{tmp_path}/run\n")
    assert "the run is already complete" in err
    code, out, err = lab("report", tmp_path / "run")
    assert (code, out, err) == (0, f"{tmp_path}/run/report.html\n", "")


@pytest.mark.parametrize("plugged", [False, True])
def test_1_an_internal_error_shows_its_traceback_and_asks_for_a_report(tmp_path, monkeypatch, capsys, plugged) -> None:
    file = spy(tmp_path) if plugged else experiment(tmp_path, **SHORT)

    def broken(*_: object, **__: object) -> None:
        raise KeyError("unforeseen")

    monkeypatch.setattr("electra_lab.training.loop.training_step", broken)
    monkeypatch.setattr(sys, "argv", ["electra-lab", "run", str(file), "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "KeyError: 'unforeseen'" in said
    last = said.strip().splitlines()[-1]
    assert last.startswith("This is an internal error of electra_lab, ")
    assert ("spy.py" in last) == plugged
    assert last.endswith("Please report it.")


def test_4_checkpoints_that_are_all_damaged(lab: Any, tmp_path: Path) -> None:
    lab("run", experiment(tmp_path / "there", **SHORT), "--out", tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "step-00000004" / "state.json").write_text("{}")
    code, out, err = lab("resume", tmp_path / "run")
    assert (code, out) == (4, "")
    assert err.endswith("none of the 1 checkpoints is usable. Start a new run.\n")


@pytest.mark.parametrize("verb", ["run", "resume"])
def test_5_a_run_that_diverges(lab: Any, tmp_path: Path, verb: str) -> None:
    code, out, err = lab("run", spy(tmp_path / "there", ", poison: 2"), "--out", tmp_path / "run")
    if verb == "resume":
        code, out, err = lab("resume", tmp_path / "run")
    assert (code, out) == (5, "")
    assert re.search(r"^step 4: the loss or gradient of 1 of the steps", err, re.MULTILINE)
    assert "or set train.on_non_finite: skip. There is no checkpoint." in err
    assert err.endswith(f"To find the cause: electra-lab replay {tmp_path / 'run'}\n")
    assert json.loads(lab("list", tmp_path / "run", "--json")[1])[0]["state"] == "diverged"


GREEDY = '''
from registry import corpora


@corpora.register("greedy")
class Greedy:
    """Wants more memory than there is."""

    def __init__(self, /):
        pass

    def __iter__(self):
        yield bytearray(1 << 60).decode()

    def fingerprint(self):
        return "greedy"
'''


def test_6_too_little_memory_for_the_data(lab: Any, tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text(GREEDY)
    code, out, err = lab("run", experiment(tmp_path, corpus="{type: greedy}\nimports: [greedy.py]"))
    assert (code, out) == (6, "")
    assert re.search(r"^there is not enough memory \(.*\)\. ", err, re.MULTILINE)


@pytest.mark.parametrize("words", ["std::bad_alloc", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling it"])
@pytest.mark.parametrize("verb", ["run", "prepare"])
def test_6_too_little_memory_in_the_words_of_libraries(lab: Any, tmp_path: Path, verb: str, words: str) -> None:
    """Also from inside a plug-in, which is not to blame."""
    (tmp_path / "greedy.py").write_text(
        GREEDY.replace("yield bytearray(1 << 60).decode()", f"raise RuntimeError({words!r})")
    )
    file = experiment(tmp_path, corpus="{type: greedy}\nimports: [greedy.py]")
    code, out, err = lab(verb, file)
    assert (code, out) == (6, "")
    assert err.endswith(f"there is not enough memory ({words}). Use a smaller corpus, batch or network.\n")


@pytest.mark.parametrize("verb", ["run", "resume"])
def test_6_too_little_memory_for_training(lab: Any, tmp_path: Path, verb: str) -> None:
    """torch's own complaint, which on the CPU is a plain RuntimeError."""
    code, out, err = lab("run", spy(tmp_path / "there", ", greed: 2"), "--out", tmp_path / "run")
    if verb == "resume":
        code, out, err = lab("resume", tmp_path / "run")
    assert (code, out) == (6, "")
    assert re.search(r"(?m)^there is not enough memory .* train\.micro_batch_size .*: electra-lab resume", err)


STOPS = [(75, signal.SIGTERM, "SIGTERM"), (75, signal.SIGHUP, "SIGHUP"), (130, signal.SIGINT, "Ctrl-C")]


@pytest.mark.parametrize(
    ("verb", "code", "number", "name"), [*(("run", *stop) for stop in STOPS), ("resume", *STOPS[-1])]
)
def test_75_and_130_a_signal_saves_and_the_resume_ends(lab, tmp_path, verb, code, number, name) -> None:
    """The resume of a run that is stopped in the same step again would not end: that step is done."""
    file, path = spy(tmp_path / "there", f", strike: 2, signal: {int(number)}"), tmp_path / "run"
    found, out, err = lab("run", file, "--out", path)
    if verb == "resume":
        lose_checkpoints(path)  # so that it begins again
        found, out, err = lab("resume", path)
    assert (found, out) == (code, "")
    second = "; a second Ctrl-C stops without saving" if name == "Ctrl-C" else ""
    assert f"{name}: saving after this step{second}\n" in err
    assert err.endswith(f"stopped and saved after step 3. Resume with: electra-lab resume {path}\n")
    assert lab("resume", path)[:2] == (0, f"{path}\n")
    assert lines(path)[-1]["step"] == 4


def test_a_plug_in_that_exits_does_not_look_like_success(lab: Any, tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text(
        "import sys\nfrom registry import samplers\n\n\n@samplers.register('leaving')\n"
        "def leaving(logits, rng, /):\n    'Leaves.'\n    sys.exit(0)\n"
    )
    code, out, err = lab("run", experiment(tmp_path, sampler="{type: leaving}\nimports: [leaving.py]", **SHORT))
    assert (code, out) == (2, "")
    assert re.search(r"leaving\.py:8: sampler 'leaving' failed: SystemExit", err)


def test_ctrl_c_twice_stops_without_saving(lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1.0]

    def strike(*_: object) -> None:
        now[0] += 1.0  # one that comes at once is the first one's echo
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Console, "advance", lambda *_: [strike(), strike()])
    code, out, err = lab("run", experiment(tmp_path / "there", **SHORT), "--out", tmp_path / "run")
    assert (code, out) == (130, "")
    assert "Ctrl-C: saving after this step; a second Ctrl-C stops without saving\n" in err
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_ctrl_c_in_a_real_process(tmp_path: Path) -> None:
    train = "{steps: 100000, batch_size: 2, precision: fp32, log_every: 1}"
    file, path = experiment(tmp_path, train=train, checkpoint="{every: 100000}"), tmp_path / "run"
    command = [sys.executable, "-m", "electra_lab", "run", str(file), "--out", str(path), "--device", "cpu"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, text=True, stdout=-1, stderr=-1)
    deadline = time.monotonic() + 180
    while not lines(path):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=180)
    assert (process.returncode, out) == (130, "")
    assert "Ctrl-C: saving after this step; a second Ctrl-C stops without saving\n" in err
    (saved,) = (path / "checkpoints").iterdir()
    assert err.endswith(f"stopped and saved after step {int(saved.name[5:])}. Resume with: electra-lab resume {path}\n")
