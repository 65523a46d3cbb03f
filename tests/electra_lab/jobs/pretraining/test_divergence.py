"""Diverged runs: a rollback skips the batches that led to the divergence; a replay finds the cause."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from electra_lab.cli.replay import replay as command
from electra_lab.data.rows import Rows
from electra_lab.jobs.pretraining import execute
from electra_lab.jobs.pretraining.replay import replay
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training import divergence
from electra_lab.training.loop import Run
from registry.errors import DataError, DivergedError, Interrupted, InUse
from tests.electra_lab.jobs.pretraining import tiny
from tests.electra_lab.jobs.pretraining.tiny import assert_same, experiment, lines, run, spying, state, stop_at
from tests.scorecard.lab import Lab

pytestmark = pytest.mark.usefixtures("no_report")
STEPS, EVERY, BAD = 16, 4, 6  # the loss of batch 6 is not finite; step 8 notices it before its checkpoint
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
    """The result equals a run that has the offset from the checkpoint on, also if it is stopped before the divergence
    is noticed: then it resumes from the checkpoint to which it was rolled back."""
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
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An experiment that is rolled back twice, and a run of it."""
    folder = tmp_path_factory.mktemp("twice")
    with tiny.for_a_module():
        file = rolling(folder, BAD, 11)  # batch 11 is read by step 8, after the checkpoint of step 8
        return file, run(file, folder / "whole")


# Between divergence and rollback, and between and after the two rollbacks. The slow cases are other steps of the same
# phases, and steps before the first checkpoint, after which any run starts over.
KILLS = [7, 13, 21, *(pytest.param(kill, marks=pytest.mark.slow) for kill in (1, 4, 6, 8, 9, 11, 12, 15))]


@pytest.mark.parametrize("kill", KILLS)
def test_killed_at_any_step_and_resumed_it_is_the_same_run(tmp_path: Path, monkeypatch, twice, kill: int) -> None:
    file, expected = twice
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


FRAGILE = Path(__file__).with_name("fragile.py")


def fragile(folder: Path, wrong: str, at: int = 6, **sections: str) -> Path:
    """Write an experiment whose discriminator fails at a step, in its second layer."""
    shutil.copyfile(FRAGILE, folder / "fragile.py")
    backbone = f"{{type: fragile, dim: 16, depth: 3, heads: 2, wrong: {wrong}, at: {at}}}"
    generator = "{type: bert, dim: 8, depth: 1, heads: 2}"
    return experiment(folder, imports="[fragile.py]", discriminator=backbone, generator=generator, **sections)


LINE = 1 + FRAGILE.read_text().splitlines().index("    def forward(self, x):")  # the first one, of FeedForward


def diverged(file: Path, out: Path, *overrides: str) -> Path:
    with pytest.raises(DivergedError):
        run(file, out, *overrides)
    return out


@pytest.mark.parametrize("wrong", ["forward", "backward"])
def test_a_plug_in_is_named_with_module_file_and_line(tmp_path: Path, wrong: str) -> None:
    path = diverged(fragile(tmp_path, wrong), tmp_path / "run")
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.rglob("*") if file.is_file()}
    found = replay(path, "cpu")
    assert before == {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.rglob("*") if file.is_file()}
    assert (found.kind, found.step, found.found) == (wrong, 7, True)
    assert found.module == "discriminator.backbone.layers.1"
    assert found.place.endswith(f"fragile.py:{LINE}")
    assert Path(found.place.rpartition(":")[0]).resolve() == tmp_path / "fragile.py"
    assert "step 7: " in found.text
    assert "the backbone 'fragile' of the discriminator" in found.text


@pytest.mark.parametrize("spoils", ["false", "true"])
def test_what_no_module_but_the_objective_spoils(tmp_path: Path, spoils: str) -> None:
    """The spy's extra term reads a weight outside of any module: its gradient or the objective's loss is named."""
    file = spying(tmp_path, objective=f"{{type: spy, poison: 6, spoils_loss: {spoils}}}")
    found = replay(diverged(file, tmp_path / "run"), "cpu")
    assert (found.kind, found.step) == ("forward" if spoils == "true" else "backward", 7)
    if spoils == "true":
        assert (found.module, found.of_class) == ("", "Spy")
        assert "the objective (Spy, " in found.text
    else:
        assert found.parameter is not None
        assert found.parameter in found.text


@pytest.mark.parametrize("setting", ["optimizer.epsilon=1.0e-50", "train.learning_rate=1.0e+39"])
def test_an_update_that_spoils_weights(tmp_path: Path, setting: str) -> None:
    path = diverged(experiment(tmp_path), tmp_path / "run", setting)
    found = replay(path, "cpu")
    assert found.kind == "update"
    assert found.parameter is not None
    assert f"but after the update {found.parameter} is not" in found.text


def test_a_spike_is_named_by_its_norm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "LEAD", 2)
    path = diverged(experiment(tmp_path), tmp_path / "run", "train.spike=1.0001")
    found = replay(path, "cpu")
    assert found.kind == "norm"
    assert "train.spike 1.0001 x the average" in found.text


def test_the_steps_are_those_of_a_run_that_skips(tmp_path: Path) -> None:
    file = fragile(tmp_path, "forward", at=10)
    settings = "train.on_non_finite=skip", "train.skip_limit=1", "train.steps=20", "objective.generator_weight=1.0e+38"
    assert replay(diverged(file, tmp_path / "run", *settings), "cpu").found


def test_nothing_is_found_in_a_run_that_ended_well(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = replay(whole, "cpu")
    assert (found.kind, found.found, found.step) == ("nothing", False, 12)
    with pytest.raises(typer.Exit) as ended:
        command(whole)
    assert ended.value.exit_code == 1
    assert "there is no step to repeat: the newest checkpoint is that of the last step, 12." in capsys.readouterr().out


def test_what_was_rolled_back_is_repeated(tmp_path: Path) -> None:
    """The records after the checkpoint were removed, so they do not show how far the run had come."""
    sections = {"checkpoint": "{every: 4}", "train": "{steps: 12, batch_size: 4, precision: fp32, log_every: 1}"}
    given = ["train.on_non_finite=roll_back", "train.most_rollbacks=1"]
    path = diverged(fragile(tmp_path, "forward", at=10, **sections), tmp_path / "run", *given)
    assert RunDirectory(path).records()[-1]["step"] <= 10
    RunDirectory(path).truncate(8)
    found = replay(path, "cpu")
    assert (found.found, found.step) == (True, 11)


def test_after_a_roll_back_the_batches_are_those_that_the_run_has_read(tmp_path: Path) -> None:
    path = diverged(rolling(tmp_path, 6, 12), tmp_path / "run", "train.most_rollbacks=1")
    assert state(path)["step"] == 8
    assert state(path)["trouble"]["offset"] == 3
    found = replay(path, "cpu")
    assert (found.kind, found.step) == ("backward", 10)
    assert found.parameter is not None


def test_only_the_run_directory_and_the_store_are_needed(forks: Lab, tmp_path: Path) -> None:
    path = diverged(fragile(tmp_path, "forward"), tmp_path / "run")
    (tmp_path / "corpus.txt").unlink()
    (tmp_path / "store").rename(tmp_path / "moved")
    with pytest.raises(DataError, match=r"there is no token store\. If it was moved, name it with --store"):
        replay(path, "cpu")
    (tmp_path / "fragile.py").unlink()
    done = forks("replay", path, "--json", "--store", tmp_path / "moved", cwd=tmp_path)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["found"], found["kind"], found["step"]) == (True, "forward", 7)
    assert (found["module"], found["of_class"]) == ("discriminator.backbone.layers.1", "FeedForward")
    assert found["place"] == f"fragile.py:{LINE}"


def test_a_run_in_progress_is_refused(whole: Path) -> None:
    directory = RunDirectory.open(whole)
    with directory.locked(), pytest.raises(InUse, match=f"in use by process {os.getpid()}"):
        replay(whole, "cpu")
    with directory.observed(), pytest.raises(InUse), RunDirectory.open(whole).locked():
        pass
