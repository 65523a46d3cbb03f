"""Diverged runs: a spike counts as a step that is not finite; a replay finds the cause."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import typer

from electra_lab.cli.replay import replay as command
from electra_lab.jobs.pretraining import execute
from electra_lab.jobs.pretraining.replay import replay
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training import execution
from registry.errors import DataError, DivergedError, InUse
from tests.electra_lab.jobs.pretraining.tiny import assert_same, experiment, lines, run, spying, stop_at
from tests.scorecard.lab import Lab

pytestmark = pytest.mark.usefixtures("no_report")
STEPS = 16


def test_a_spike_counts_as_a_step_that_is_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "LEAD", 3)
    train = f"{{steps: {STEPS}, batch_size: 4, precision: fp32, log_every: 5, on_non_finite: skip, spike: 1.02}}"
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
    monkeypatch.setattr(execution, "LEAD", 2)
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
