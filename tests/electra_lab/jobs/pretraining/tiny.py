"""Real runs of a few steps, and an objective that records its passes."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import registry
from electra_lab.jobs.pretraining import execute
from electra_lab.presentation.console import Console
from registry import discovery, objectives
from registry.errors import Stopped
from tests.helpers import write_experiment

TRAIN = "{steps: 12, batch_size: 4, precision: fp32, log_every: 5}"
IN_PARTS = TRAIN.replace("batch_size: 4", "batch_size: 4, micro_batch_size: 2")  # which take twice as long
MEASURED = ("seconds", "tokens_per_second", "peak_memory_bytes")  # in records; all other fields are equal in equal runs
SPY = Path(__file__).with_name("spy.py")


def experiment(folder: Path, **sections: str) -> Path:
    """Write an experiment with dropout, a warm-up, log lines that checkpoints cut in two, and evaluation."""
    settings = {
        "data": f"{{sequence_length: 16, held_out: 0.3, store: {folder / 'store'}}}",
        "schedules": "{learning_rate: {warmup_steps: 3}}",
        "train": TRAIN,
        "evaluate": "{every: 6, examples: 2}",
        "checkpoint": "{every: 4, keep: 2}",
    }
    return write_experiment(folder, **(settings | sections))


def spying(folder: Path, **sections: str) -> Path:
    """Write an experiment with micro-batches whose objective is ELECTRA and records every pass."""
    spy = {"imports": f"[{SPY}]", "objective": "{type: spy}", "train": IN_PARTS}
    return experiment(folder, **(spy | sections))


def passes() -> list[Any]:
    """Return and clear the spy's passes since the last run began, without rehearsals."""
    spy = objectives._entries.get("spy")
    seen: list[Any] = spy.component.seen if spy else []
    found = [call for call in seen if not call.rehearsal]
    seen.clear()
    return found


@contextmanager
def for_a_module() -> Iterator[pytest.MonkeyPatch]:
    """Draw no charts, and forget plug-ins at the end; for runs in module-scoped fixtures."""
    loaded = dict(discovery._loaded)
    with ExitStack() as stack:
        for components in registry.ALL:
            stack.enter_context(components.isolated())
        patched = stack.enter_context(pytest.MonkeyPatch.context())
        patched.setattr(execute, "write_report", lambda directory, *_: directory.path / "report.html")
        yield patched
    discovery._loaded.clear()
    discovery._loaded.update(loaded)


def run(file: Path, out: Path, *overrides: str) -> Path:
    passes()
    return execute.run(file, list(overrides), out, "cpu")


class Killed(BaseException):
    """Stands for SIGKILL: ends a run without cleanup."""


def killed_at(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """End the training after this number of steps, repeated ones included."""
    done = []

    def advance(*_: object) -> None:
        done.append(1)
        if len(done) == count:
            raise Killed

    monkeypatch.setattr(Console, "advance", advance)


def steps(path: Path) -> list[int]:
    """Return the steps of the existing checkpoints."""
    return sorted(int(folder.name[5:]) for folder in path.glob("checkpoints/step-*"))


def lose_checkpoints(path: Path) -> None:
    """Leave a run as if it had been killed before its first checkpoint."""
    shutil.rmtree(path / "checkpoints")
    (path / "saved.json").unlink()


def lines(path: Path, split: str | None = None) -> list[dict[str, Any]]:
    """Return the records of a run, or those of one split, without the line that names the run."""
    if not (path / "metrics.jsonl").exists():
        return []
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record["split"] in ((split,) if split else ("train", "validation", "test"))]


def tensors(path: Path, step: int | None = None) -> dict[str, Any]:
    """Return the tensors of a checkpoint, the last one if no step is given."""
    name = f"step-{step:08d}" if step is not None else max(p.name for p in (path / "checkpoints").glob("step-*"))
    return load_file(path / "checkpoints" / name / "state.safetensors")


def state(path: Path) -> dict[str, Any]:
    """Return state.json of the last checkpoint, without the id of the run."""
    found: dict[str, Any] = json.loads((max((path / "checkpoints").glob("step-*")) / "state.json").read_text())
    assert found.pop("run") == json.loads((path / "provenance.json").read_text())["id"]
    return found


def timeless(path: Path) -> list[dict[str, Any]]:
    """Return the records of a run without its times."""
    found = []
    for record in lines(path):
        found.append({name: value for name, value in record.items() if name not in MEASURED})
    return found


def outcome(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the results of a run, and its last weights and optimizer state."""
    return timeless(path), tensors(path)


def assert_same(one: Path, two: Path) -> None:
    (records, weights), (other_records, other_weights) = outcome(one), outcome(two)
    assert records == other_records
    assert state(one) == state(two)
    assert weights.keys() == other_weights.keys()
    assert [name for name in weights if not weights[name].equal(other_weights[name])] == []


@contextmanager
def default_signals() -> Iterator[None]:
    """Set the signal handlers of a terminal, even if the tests were started with nohup or in the background."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def signalled(monkeypatch: pytest.MonkeyPatch, number: int, step: int) -> None:
    """Send this process a signal when `step` is done."""

    def advance(_: Console, done: int) -> None:
        if done == step:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Console, "advance", advance)


def stop_at(step: int, train: Callable[[], object], number: int = signal.SIGINT) -> None:
    """Send this process a signal when `step` is done, which stops the training."""
    with pytest.MonkeyPatch.context() as patched:
        signalled(patched, number, step)
        with pytest.raises(Stopped, match=r"saved after step \d+\."):
            train()
