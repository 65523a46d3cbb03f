"""Runs that diverge and are rolled back: the batches that led there are left out, wherever the run is stopped."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab.data.rows import Rows
from electra_lab.jobs.pretraining import execute
from electra_lab.training import divergence
from electra_lab.training.loop import Run
from registry.errors import DivergedError, Interrupted
from tests.electra_lab.jobs.pretraining import tiny
from tests.electra_lab.jobs.pretraining.tiny import assert_same, experiment, lines, run, spying, state, stop_at

pytestmark = pytest.mark.usefixtures("no_report")
STEPS, EVERY, BAD = 16, 4, 6  # batch 6 has no finite loss; it is noticed at step 8, before the checkpoint
ROLL_BACK = f"{{steps: {STEPS}, batch_size: 4, precision: fp32, log_every: 5, on_non_finite: roll_back}}"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the batches that training has read."""
    found, batch = list[int](), Rows.training_batch

    def training_batch(self: Rows, seed: int, step: int, size: int, *rest: Any, **options: Any) -> Any:
        if size == 4:  # the rehearsal's has fewer rows
            found.append(step)
        return batch(self, seed, step, size, *rest, **options)

    monkeypatch.setattr(Rows, "training_batch", training_batch)
    return found


def rolling(folder: Path, *bad: int, **sections: str) -> Path:
    """Write an experiment whose loss is not finite on some batches."""
    settings = {"train": ROLL_BACK, "checkpoint": f"{{every: {EVERY}, keep: 9}}"} | sections
    file = spying(folder, **settings)
    loaded, seen = execute.load(file), list[Any]()
    rows = execute.assemble(loaded, execute.open_data(loaded, lambda _: None), torch.device("cpu")).train
    for number in bad:
        seen.append(rows.training_batch(0, number, 4, torch.device("cpu")).tokens.flatten().tolist())
    return spying(folder, **settings, objective=f"{{type: spy, poisons: {json.dumps(seen)}}}")


def test_a_rolled_back_run_leaves_out_the_batches_from_the_checkpoint_to_the_refused_one(
    tmp_path: Path, read: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the run that has the offset from the checkpoint on, also if it is stopped before the divergence is noticed:
    what it can resume from is the checkpoint that it was put back to."""
    file = rolling(tmp_path, BAD)
    read.clear()
    path = run(file, tmp_path / "run")
    assert read == [*range(8), *range(7, 7 + STEPS - 4)]
    assert all(torch.isfinite(tensor).all() for tensor in tiny.tensors(path).values())
    records = lines(path, "train")
    assert [(r["step"], r["skipped_steps"], r.get("rollbacks")) for r in records] == [
        (5, 0, 1), (10, 0, 1), (15, 0, 1), (16, 0, 1)]  # fmt: skip
    kept = state(path)["trouble"]
    assert (kept["offset"], kept["rollbacks"], kept["refused"]) == (BAD + 1 - EVERY, 1, 0)
    said = capsys.readouterr().err
    assert "first that of step 7. Rolled back to step 4 (1 of at most 3 times); 3 batches" in said

    with monkeypatch.context() as patched:
        tiny.signalled(patched, signal.SIGINT, BAD + 1)
        with pytest.raises(Interrupted, match="saved after step 4"):
            run(file, tmp_path / "stopped")
    execute.resume(tmp_path / "stopped", "cpu")
    assert_same(path, tmp_path / "stopped")

    stop_at(EVERY, lambda: run(file, tmp_path / "other"))
    restore = Run.restore

    def shifted(self: Run, state: dict[str, Any]) -> None:
        restore(self, state)
        self.offset, self.rollbacks = BAD + 1 - EVERY, 1

    monkeypatch.setattr(Run, "restore", shifted)
    execute.resume(tmp_path / "other", "cpu")
    assert_same(path, tmp_path / "other")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An experiment that is rolled back twice, and a run of it."""
    folder = tmp_path_factory.mktemp("twice")
    with tiny.for_a_module():
        file = rolling(folder, BAD, 11)  # batch 11 is read by step 8, after the checkpoint of step 8
        return file, run(file, folder / "whole")


# Between divergence and rollback, and between and after the two rollbacks. The slow ones are other steps of the same
# phases, and some before the first checkpoint, after which any run begins again.
KILLS = [7, 13, 21, *(pytest.param(kill, marks=pytest.mark.slow) for kill in (1, 4, 6, 8, 9, 11, 12, 15))]


@pytest.mark.parametrize("kill", KILLS)
def test_killed_at_any_step_and_resumed_it_is_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: tuple[Path, Path], kill: int
) -> None:
    file, expected = whole
    assert state(expected)["trouble"]["rollbacks"] == 2
    with monkeypatch.context() as patched:
        tiny.killed_at(patched, kill)
        with pytest.raises(tiny.Killed):
            run(file, tmp_path / "run")
    execute.resume(tmp_path / "run", "cpu")
    assert_same(expected, tmp_path / "run")


def test_stopped_by_a_signal_after_a_rollback_it_is_the_same_run(tmp_path: Path) -> None:
    file = rolling(tmp_path, 2, checkpoint="{every: 1, keep: 99}")
    expected = run(file, tmp_path / "whole")
    path = tmp_path / "stopped"
    stop_at(9, lambda: run(file, path))
    assert state(path)["trouble"]["offset"] == 1
    execute.resume(path, "cpu")
    assert_same(expected, path)


def test_rollbacks_have_a_limit(tmp_path: Path) -> None:
    file = spying(tmp_path, train=ROLL_BACK, objective="{type: spy, poison: 6}", checkpoint="{every: 4}")
    path = tmp_path / "run"
    with pytest.raises(
        DivergedError, match=r"^step 8: .* rolled back 2 times \(train.most_rollbacks\)\. The newest intact"
    ):
        run(file, path, "train.most_rollbacks=2")
    assert tiny.steps(path) == [4]


def test_without_a_checkpoint_there_is_nothing_to_roll_back_to(tmp_path: Path) -> None:
    file = rolling(tmp_path, 1)
    with pytest.raises(DivergedError, match=r"cannot be rolled back, as there is no checkpoint yet"):
        run(file, tmp_path / "run")


def test_weights_that_are_spoilt_are_rolled_back_too(tmp_path: Path) -> None:
    file = experiment(tmp_path, train=ROLL_BACK, checkpoint="{every: 1, keep: 99}")
    with pytest.raises(DivergedError, match=r"are no longer finite.* (cannot be rolled back|rolled back 3 times)"):
        run(file, tmp_path / "run", "optimizer.epsilon=1.0e-50")


def test_a_spike_counts_as_a_step_that_is_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "LEAD", 3)
    train = ROLL_BACK.replace("roll_back", "skip, spike: 1.02")
    file = experiment(tmp_path, train=train, checkpoint="{every: 4}")
    whole, path = run(file, tmp_path / "whole"), tmp_path / "run"
    assert 0 < lines(whole, "train")[-1]["skipped_steps"] < STEPS - 3
    stop_at(2, lambda: run(file, path))
    stop_at(9, lambda: execute.resume(path, "cpu"))
    execute.resume(path, "cpu")
    assert_same(whole, path)
