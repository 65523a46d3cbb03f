"""Runs in processes of their own that are killed and stopped, with a tracker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from electra_lab.testing.trackers import Values
from tests.electra_lab.jobs.pretraining.tiny import experiment, lines
from tests.helpers import ROOT
from tests.scorecard.lab import Lab, Running

STEPS = 240


def interrupted(
    folder: Path, tracker: str, environment: dict[str, str] | None = None, forks: Lab | None = None
) -> Path:
    """Kill a run, stop its continuation by SIGTERM, and let it end; returns the run directory.

    Nothing of the tracker may show in exit codes and in what is printed. Where forks are given, only the last process
    is a whole one: of a library that does all its work in the process of the run.
    """
    train = f"{{steps: {STEPS}, batch_size: 2, precision: fp32, log_every: 1}}"
    sections = {"trackers": f"[{tracker}]", "train": train, "checkpoint": "{every: 25, keep: 2}"}
    file, path = experiment(folder, evaluate="{examples: 0}", **sections), folder / "run"
    begun, resumed = ("run", str(file), "--out", str(path)), ("resume", str(path))
    if forks:
        assert forked(forks, folder, *begun, until=70, number=signal.SIGKILL) == -9
        assert forked(forks, folder, *resumed, until=150, number=signal.SIGTERM) == 75
    else:
        assert part(folder, environment, *begun, until=70, number=signal.SIGKILL) == -9
        assert part(folder, environment, *resumed, until=150, number=signal.SIGTERM) == 75
    assert part(folder, environment, *resumed) == 0
    return path


def part(
    folder: Path,
    environment: dict[str, str] | None,
    *command: str,
    until: int = 0,
    number: signal.Signals | None = None,
) -> int:
    """Run the lab, and send it a signal when metrics.jsonl has so many lines; returns its exit code."""
    here = folder / "here"
    here.mkdir(exist_ok=True)
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
    surroundings.pop("WANDB_SERVICE", None)  # the process that W&B has started for the tests outlives the run's
    process = subprocess.Popen(
        [sys.executable, "-m", "electra_lab", *command], cwd=here, env=surroundings, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    if number:
        strike(process, folder, until, number)
    out, err = process.communicate(timeout=100)
    assert_silent(folder, out, err)
    return process.returncode


def forked(forks: Lab, folder: Path, *command: str, until: int, number: signal.Signals) -> int:
    """Do what `part` does in a process that need not import the lab."""
    here = folder / "here"
    here.mkdir(exist_ok=True)
    process = forks.start(*command, cwd=here)
    strike(process, folder, until, number)
    done = process.wait(100)
    assert_silent(folder, done.out, done.err)
    return done.code


def strike(process: subprocess.Popen[str] | Running, folder: Path, until: int, number: signal.Signals) -> None:
    """Send a signal when metrics.jsonl has so many lines."""
    metrics = folder / "run" / "metrics.jsonl"
    while process.poll() is None:
        if metrics.exists() and metrics.read_bytes().count(b"\n") >= until:
            os.kill(process.pid, number)
            break
        time.sleep(0.01)


def assert_silent(folder: Path, out: str, err: str) -> None:
    assert out in ("", f"{folder / 'run'}\n"), out
    assert unexpected(err) == [], err
    assert list((folder / "here").iterdir()) == []


def unexpected(said: str) -> list[str]:
    """Return the lines of a run's output that look as if a library had written them."""
    words = ("tracker", "wandb", "mlflow", "trackio", "tensorboard", "alembic", "warning", "* ")
    return [line for line in said.splitlines() if any(word in line.lower() for word in words)]


def assert_whole(found: Values, path: Path, *, lost: int = 0) -> None:
    """Assert that every record of a run is there once, but for so many that a kill fell upon."""
    wanted: Values = {}
    for line in lines(path):
        for name in line.keys() - {"step", "split"}:
            if line[name] is not None:
                wanted.setdefault(f"{line['split']}/{name}", {})[line["step"]] = [line[name]]
    assert found.keys() == wanted.keys()
    for name, by_step in found.items():
        assert by_step.keys() <= wanted[name].keys()
        assert all(len(values) == 1 for values in by_step.values()), f"{name}: a step is there twice"
        assert len(wanted[name]) - len(by_step) <= lost, f"{name}: {sorted(wanted[name].keys() - by_step.keys())}"
        if "second" not in name and "memory" not in name:
            assert all(abs(by_step[s][0] - wanted[name][s][0]) <= 1e-5 * abs(by_step[s][0]) for s in by_step), name
