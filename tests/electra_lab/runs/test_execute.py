"""Runs: deterministic, and the same whether or not they were stopped."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from electra_lab.runs import execute
from electra_lab.runs.console import Console
from electra_lab.runs.directory import RunDirectory
from registry.errors import CheckpointError, ConfigError, DataError, Interrupted, OutOfMemoryError, Preempted
from tests.helpers import ROOT, write_experiment

TRAIN = "{steps: 12, batch_size: 4, micro_batch_size: 2, warmup_steps: 3, precision: fp32, log_every: 5}"
BACKBONES = {
    "bert": "{type: bert, dim: 16, depth: 1, heads: 2}",
    "transformer": "{type: transformer, dim: 16, depth: 1, heads: 2}",
    "reformer": "{type: reformer, dim: 16, depth: 1, heads: 2, bucket_size: 4, hashes: 1}",
}


def experiment(folder: Path, **sections: str) -> Path:
    """With dropout, micro-batches, log lines that checkpoints cut in two, and evaluation in between."""
    store = folder / "store"
    settings = {
        "data": f"{{sequence_length: 16, held_out: 0.3, store: {store}}}",
        "train": TRAIN,
        "evaluate": "{every: 6, examples: 2}",
        "checkpoint": "{every: 4, keep: 2}",
    }
    return write_experiment(folder, **(settings | sections))


def run(file: Path, out: Path, *overrides: str) -> Path:
    return execute.run(file, list(overrides), out, "cpu")


def outcome(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All that a run found out but for how long it took, and its last weights and moments."""
    records = [{k: v for k, v in r.items() if k not in ("seconds", "tokens_per_second")} for r in lines(path)]
    return records, load_file(path / "checkpoints" / "step-00000012" / "state.safetensors")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def assert_same(one: Path, two: Path) -> None:
    (records, weights), (other_records, other_weights) = outcome(one), outcome(two)
    assert records == other_records
    assert weights.keys() == other_weights.keys()
    assert all(weights[name].equal(other_weights[name]) for name in weights)


def signalled(monkeypatch: pytest.MonkeyPatch, number: int, step: int) -> None:
    """Send this process a signal when `step` is done."""

    def advance(_: Console, done: int) -> None:
        if done == step:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Console, "advance", advance)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_one_seed_gives_one_run_and_another_seed_another(tmp_path: Path, backbone: str) -> None:
    file = experiment(tmp_path, discriminator=BACKBONES[backbone])
    first, second = (run(file, tmp_path / name) for name in ("a", "b"))
    assert_same(first, second)
    other = run(file, tmp_path / "c", "seed=1")
    assert lines(other)[0]["loss"] != lines(first)[0]["loss"]


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("step", [1, 4, 7, 11])
def test_stopped_at_any_step_and_resumed_is_as_if_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backbone: str, step: int
) -> None:
    file = experiment(tmp_path, discriminator=BACKBONES[backbone])
    whole = run(file, tmp_path / "whole")
    stopped = tmp_path / "stopped"
    with monkeypatch.context() as patched:
        signalled(patched, signal.SIGINT, step)
        with pytest.raises(Interrupted, match=f"saved after step {step}. Go on with: electra-lab resume"):
            run(file, stopped)
    assert (stopped / "checkpoints" / f"step-{step:08d}").is_dir()
    execute.resume(stopped, "cpu")
    assert_same(whole, stopped)


def test_sigterm_saves_and_says_preempted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = experiment(tmp_path)
    signalled(monkeypatch, signal.SIGTERM, 3)
    with pytest.raises(Preempted) as stopped:
        run(file, tmp_path / "run")
    assert stopped.value.exit_code == 75
    assert Interrupted.exit_code == 130


def killed(arguments: list[str], when: Callable[[], bool], cwd: Path) -> bool:
    """Start the lab in a process of its own and SIGKILL it as soon as `when` says so; False if it finished first."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "electra_lab", *arguments], cwd=cwd, env=environment, stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    while process.poll() is None:
        if when():
            process.kill()
            process.wait()
            return True
        time.sleep(0.002)
    assert process.returncode == 0
    return False


def test_killed_at_random_and_resumed_is_as_if_never_killed(tmp_path: Path) -> None:
    """kill -9 at a random moment of the run, in the middle of whatever it is doing, and again during the resume."""
    file = experiment(tmp_path, checkpoint="{every: 1, keep: 2}")
    whole, broken = run(file, tmp_path / "whole"), tmp_path / "broken"
    chance = random.Random(os.getpid())
    moment = chance.uniform(0, 0.4)  # seconds after the run directory appears; a run takes about half a second
    seen: list[float] = []

    def when() -> bool:
        if not seen and (broken / "provenance.json").exists():
            seen.append(time.monotonic())
        return bool(seen) and time.monotonic() - seen[0] > moment

    killed(["run", str(file), "--out", str(broken)], when, tmp_path)
    seen.clear()
    killed(["resume", str(broken)], when, tmp_path)
    execute.resume(broken, "cpu")
    assert_same(whole, broken)


def test_a_run_that_is_complete_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run(experiment(tmp_path), tmp_path / "run")
    before = (path / "metrics.jsonl").read_text()
    execute.resume(path, "cpu")
    assert (path / "metrics.jsonl").read_text() == before
    assert "complete already" in capsys.readouterr().err


def test_a_damaged_checkpoint_costs_its_steps_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run(experiment(tmp_path), tmp_path / "run")
    whole = outcome(path)
    (path / "checkpoints" / "step-00000012" / "state.safetensors").write_bytes(b"broken")
    execute.resume(path, "cpu")
    assert "step-00000012: state.safetensors is damaged" in capsys.readouterr().err
    assert outcome(path)[0] == whole[0]


def test_what_changed_since_the_run_began_is_refused(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from registry import samplers\n\n"
        "@samplers.register('mine_of_execute')\ndef mine(logits, rng, /):\n    'Mine.'\n    return logits.argmax(-1)\n"
    )
    file = experiment(tmp_path, sampler="{type: mine_of_execute}\nimports: [mine.py]")
    path = run(file, tmp_path / "run")
    (kept,) = (path / "plugins").iterdir()
    assert kept.name.endswith("-mine.py")
    assert kept.read_text() == plugin.read_text()

    corpus = tmp_path / "corpus.txt"
    text = corpus.read_text()
    corpus.write_text(text + "\n\none more paragraph\n")
    with pytest.raises(DataError, match="corpus is not the one"):
        execute.resume(path, "cpu")
    corpus.write_text(text)

    config = path / "config.yaml"
    config.write_text(config.read_text().replace("steps: 12", "steps: 13"))
    with pytest.raises(ConfigError, match="was changed since the run began"):
        execute.resume(path, "cpu")


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    path = run(experiment(tmp_path), tmp_path / "run")
    with (
        RunDirectory(path).locked(),
        pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"),
    ):
        execute.resume(path, "cpu")


@pytest.mark.parametrize("content", ["{}", "[]", "not JSON"])
def test_a_damaged_run_directory_is_a_sentence(tmp_path: Path, content: str) -> None:
    path = run(experiment(tmp_path), tmp_path / "run")
    (path / "provenance.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"provenance.json: (is damaged|cannot be read)"):
        execute.resume(path, "cpu")


@pytest.mark.parametrize("line", ["[]", "{}", "half a rec"])
def test_a_damaged_line_of_metrics_is_named_and_a_cut_last_one_left_out(tmp_path: Path, line: str) -> None:
    path = run(experiment(tmp_path), tmp_path / "run")
    metrics = path / "metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text(whole + line)
    execute.resume(path, "cpu")
    assert metrics.read_text() == whole
    metrics.write_text(line + "\n" + whole)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl:1: is no record"):
        execute.resume(path, "cpu")


def test_a_run_without_a_checkpoint_starts_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = run(experiment(tmp_path), tmp_path / "whole")
    early = run(experiment(tmp_path), tmp_path / "early")
    shutil.rmtree(early / "checkpoints")
    execute.resume(early, "cpu")
    assert "starting again from the beginning" in capsys.readouterr().err
    assert_same(whole, early)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory"), torch.OutOfMemoryError("CUDA out of")],
    ids=lambda e: type(e).__name__,
)
def test_too_little_memory_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(execute, "train", full)
    with pytest.raises(OutOfMemoryError, match=r"train\.micro_batch_size"):
        run(experiment(tmp_path), tmp_path / "run")


def test_another_runtime_error_stays_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(execute, "train", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        run(experiment(tmp_path), tmp_path / "run")


def test_no_run_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no run directory"):
        execute.resume(tmp_path, "cpu")


def test_a_full_disk_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, append = experiment(tmp_path), Path.open

    def full(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "metrics.jsonl":
            raise OSError(28, "No space left on device", str(path))
        return append(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(CheckpointError, match=r"metrics.jsonl: cannot be written \(No space left on device\)"):
        run(file, tmp_path / "run")


def test_a_diverging_run_says_so_and_spoils_no_weight(tmp_path: Path) -> None:
    from registry.errors import DivergedError

    file = experiment(tmp_path)
    with pytest.raises(DivergedError, match="was not finite"):
        run(file, tmp_path / "run", "train.learning_rate=1.0e+30", "train.clip_norm=1.0e+30", "train.warmup_steps=0")


def test_the_run_directory_holds_what_it_promises(tmp_path: Path) -> None:
    file = experiment(tmp_path)
    path = run(file, tmp_path / "run")
    promised = {"config.yaml", "source.yaml", "provenance.json", "metrics.jsonl", "report.html", "examples.json"}
    assert promised <= {p.name for p in path.iterdir()}
    assert (path / "source.yaml").read_text() == file.read_text()
    assert {p.name for p in (path / "checkpoints").iterdir()} == {"step-00000008", "step-00000012"}
    provenance = json.loads((path / "provenance.json").read_text())
    assert provenance["environment"]["packages"]["torch"]
    assert [(r["step"], r["split"]) for r in lines(path)] == [
        (5, "train"), (6, "held_out"), (10, "train"), (12, "train"), (12, "held_out"),
    ]  # fmt: skip
    assert lines(path)[-2]["tokens"] == 12 * 4 * 16
    assert lines(path)[-2]["flops"] == 12 * provenance["flops_per_step"]
