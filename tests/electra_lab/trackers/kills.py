"""Runs with a tracker in separate processes that are killed and stopped."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from electra_lab.testing.trackers import Values
from tests.electra_lab.jobs.pretraining.tiny import experiment, lines
from tests.helpers import ROOT

STEPS = 240


def interrupted(folder: Path, tracker: str, **environment: str) -> Path:
    """Kill a run, stop its continuation by SIGTERM, and let it end; returns the run directory.

    The tracker must not affect exit codes and output.
    """
    train = f"{{steps: {STEPS}, batch_size: 2, precision: fp32, log_every: 1}}"
    sections = {"trackers": f"[{tracker}]", "train": train, "checkpoint": "{every: 25, keep: 2}"}
    file, path = experiment(folder, evaluate="{examples: 0}", **sections), folder / "run"
    resumed = ("resume", str(path))
    assert part(folder, environment, "run", str(file), "--out", str(path), until=70, number=signal.SIGKILL) == -9
    assert part(folder, environment, *resumed, until=150, number=signal.SIGTERM) == 75
    assert part(folder, environment, *resumed) == 0
    return path


def part(folder: Path, environment: dict[str, str], *command: str, until: int = 0, number: int = 0) -> int:
    """Run the lab, and send it a signal when metrics.jsonl has `until` lines; returns its exit code."""
    here, metrics = folder / "here", folder / "run" / "metrics.jsonl"
    here.mkdir(exist_ok=True)
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    surroundings.pop("WANDB_SERVICE", None)  # W&B's process for the tests outlives that of the run
    process = subprocess.Popen(
        [sys.executable, "-m", "electra_lab", *command], cwd=here, env=surroundings, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    while number and process.poll() is None:
        if metrics.exists() and metrics.read_bytes().count(b"\n") >= until:
            process.send_signal(number)
            break
        time.sleep(0.01)
    out, err = process.communicate(timeout=100)
    assert_silent(folder, out, err)
    return process.returncode


def assert_silent(folder: Path, out: str, err: str) -> None:
    """Assert that no line looks like output of a library."""
    assert out in ("", f"{folder / 'run'}\n"), out
    assert not re.search(r"tracker|wandb|mlflow|trackio|tensorboard|alembic|warning|\* ", err.lower()), err
    assert list((folder / "here").iterdir()) == []


def assert_whole(found: Values, path: Path, *, lost: int = 0) -> None:
    """Assert that every record of a run exists once, except `lost` records at a kill."""
    wanted: Values = {}
    for line in lines(path):
        for name in line.keys() - {"step", "split"}:
            if line[name] is not None:
                wanted.setdefault(f"{line['split']}/{name}", {})[line["step"]] = [line[name]]
    assert found.keys() == wanted.keys()
    for name, by_step in found.items():
        assert by_step.keys() <= wanted[name].keys()
        assert all(len(values) == 1 for values in by_step.values()), f"{name}: a step occurs twice"
        assert len(wanted[name]) - len(by_step) <= lost, f"{name}: {sorted(wanted[name].keys() - by_step.keys())}"
        if "second" not in name and "memory" not in name:
            assert all(abs(by_step[s][0] - wanted[name][s][0]) <= 1e-5 * abs(by_step[s][0]) for s in by_step), name
