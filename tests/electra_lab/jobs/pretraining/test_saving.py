"""When checkpoints are written, which of them are kept, and which are never written."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab.assembly.networks import open_source
from electra_lab.config.load import load_finetuning
from electra_lab.jobs import lifecycle, saving
from electra_lab.jobs.pretraining import execute
from electra_lab.jobs.saving import Saver
from electra_lab.presentation.console import Console
from electra_lab.presentation.run_page import closing
from electra_lab.pretrained.opening import open_model, read_run
from electra_lab.storage.checkpoint import damage as checkpoint_damage
from electra_lab.storage.provenance import compared
from electra_lab.storage.run_directory import RunDirectory
from registry import Metric
from registry.errors import CheckpointError, ConfigError, DivergedError, Preempted
from tests.electra_lab.jobs.finetuning.small import write_finetuning
from tests.electra_lab.jobs.pretraining import tiny
from tests.electra_lab.jobs.pretraining.tiny import TRAIN, Killed, experiment, lines, run, spying, steps, tensors

pytestmark = pytest.mark.usefixtures("no_report")


def at(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
    """Call `act` after every step, before due checkpoints are checked."""
    monkeypatch.setattr(Console, "advance", lambda _, done: act(done))


def test_checkpoints_by_minutes_are_added_to_those_by_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes are counted from the newest checkpoint, regardless of the rule that wrote it."""
    now = [0.0]
    monkeypatch.setattr(saving.time, "monotonic", lambda: now[0])
    at(monkeypatch, lambda done: now.__setitem__(0, 50.0 * done))
    path = run(experiment(tmp_path, checkpoint="{every: 5, minutes: 2, keep: 20}"), tmp_path / "run")
    assert steps(path) == [3, 5, 8, 10, 12]


@pytest.mark.parametrize("resumed", [False, True])
def test_max_minutes_count_from_the_start_of_the_command(tmp_path: Path, whole, monkeypatch, resumed: bool) -> None:
    """Tokenizing counts, as it does on a cluster: 71 of 100 minutes, and 10 for each step."""
    file, path = experiment(tmp_path, run="{max_minutes: 100}"), tmp_path / "run"
    if resumed:
        shutil.copytree(whole, path)
        tiny.lose_checkpoints(path)
    late, opened, real = [0.0], execute.open_data, time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + 60 * late[0])

    def tokenized(*given: Any, **options: Any) -> Any:
        late[0] = 71
        return opened(*given, **options)

    monkeypatch.setattr(execute, "open_data", tokenized)
    with monkeypatch.context() as patched:
        at(patched, lambda done: late.__setitem__(0, 71 + 10 * done))
        with pytest.raises(
            Preempted, match=r"run\.max_minutes is up: stopped and saved after step 3\. Resume with: el"
        ):
            execute.resume(path, "cpu", ["run.max_minutes=100"]) if resumed else run(file, path)
    assert steps(path) == [3]
    monkeypatch.setattr(execute, "open_data", opened)
    execute.resume(path, "cpu", ["run.max_minutes=1000"])
    assert tiny.outcome(path)[0] == tiny.outcome(whole)[0]


def spoil(file: Path) -> None:
    """Truncate a file, or delete it if it is a manifest."""
    file.unlink() if file.name == "MANIFEST.json" else file.write_bytes(file.read_bytes()[:-3])


def known(monkeypatch: pytest.MonkeyPatch, values: dict[int, float]) -> None:
    """Set the validation metrics after these steps, negated for losses; the test has better ones."""
    evaluated = lifecycle.train

    def train(*given: Any, **how: Any) -> Any:
        for record in evaluated(*given, **how):
            if record.values.get("split") in ("validation", "test"):
                value = values[record.step] if record.values["split"] == "validation" else 1.0
                record.values.update(discriminator_auc=value, generator_loss=-value, generator_mask_loss=-value)
            yield record

    monkeypatch.setattr(lifecycle, "train", train)


@pytest.mark.parametrize("metric", ["discriminator_auc", "generator_loss"])
def test_the_best_checkpoint_stays_and_does_not_count(tmp_path: Path, monkeypatch, metric: str) -> None:
    """The best in the metric's direction, and the earliest of equal ones, among the evaluated checkpoints.

    The test's value, which is the best of all, does not count: a resume would remove the best and keep only the last.
    """
    known(monkeypatch, {2: 0.6, 4: 0.9, 6: 0.7, 8: 0.9, 10: 0.8, 12: 0.5})
    sections = {"evaluate": "{every: 2}", "checkpoint": f"{{every: 3, keep: 2, best: {metric}}}"}
    path = run(experiment(tmp_path, **sections), tmp_path / "run")
    assert steps(path) == [4, 9, 12]
    execute.resume(path, "cpu", ["checkpoint.keep=1"])
    assert steps(path) == [4, 12]


def test_by_default_the_best_of_the_saved_ones_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step 4 is better, but is not due to be saved. The AUC is not comparable between steps."""
    known(monkeypatch, {2: 0.1, 4: 0.9, 6: 0.8, 8: 0.1, 10: 0.1, 12: 0.5})
    sections = {"evaluate": "{every: 2}", "checkpoint": "{every: 3, keep: 1, asynchronous: true}"}
    path = run(experiment(tmp_path, **sections), tmp_path / "run")
    best = {"checkpoint": "checkpoints/step-00000006", "step": 6, "metric": "generator_mask_loss", "value": -0.8}
    assert (steps(path), json.loads((path / "best.json").read_text())) == ([6, 12], best)
    assert open_model(path, step="best").parts["discriminator"].path.name == "step-00000006"
    assert "step-00000006" in closing(RunDirectory(path), path, None)
    fine = load_finetuning(write_finetuning(tmp_path / "fine", path), ["step=best"])
    assert open_source(fine).model.run.step == 6  # type: ignore[union-attr]
    execute.resume(path, "cpu", ["checkpoint.best=off"])
    assert (steps(path), (path / "best.json").exists()) == ([12], False)
    with pytest.raises(CheckpointError, match=r"checkpoint\.best"):
        open_model(path, step="best")


def test_the_leading_metric_compares_steps_and_is_no_baseline() -> None:
    own, constant, loss = Metric(comparable=False), Metric(), Metric(baselines=("constant",))
    metrics = {"own": own, "constant": constant, "absent": Metric(), "loss": loss, "later": Metric()}
    record = {"own": 1.0, "constant": 1.0, "absent": None, "loss": 2.0, "later": 3.0}
    assert [*compared(metrics, record)] == ["loss", "later"]
    assert compared(metrics, {"own": 1.0, "constant": 1.0}) == {}


@pytest.mark.parametrize(("damage", "asynchronous"), [("state.safetensors", "false"), ("MANIFEST.json", "true")])
def test_a_run_that_goes_back_has_the_best_of_the_steps_that_it_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, asynchronous: str
) -> None:
    """After a kill at step 11 the newest checkpoint, which is the best, is damaged. The best is then step 2 again."""
    values = {2: 0.7, 4: 0.3, 6: 0.4, 8: 0.5, 10: 0.9}
    known(monkeypatch, values)
    checkpoint = f"{{every: 4, keep: 2, best: discriminator_auc, asynchronous: {asynchronous}}}"
    file, path = experiment(tmp_path, evaluate="{every: 2}", checkpoint=checkpoint), tmp_path / "run"
    with monkeypatch.context() as patched:
        tiny.killed_at(patched, 11)
        with pytest.raises(Killed):
            run(file, path)
    assert steps(path) == [2, 8, 10]
    spoil(path / "checkpoints" / "step-00000010" / damage)
    values.update({10: 0.6, 12: 0.65})
    execute.resume(path, "cpu", ["train.micro_batch_size=1"])
    validated = [(r["discriminator_auc"], r["step"]) for r in lines(path, "validation")]
    assert [step for _, step in validated] == [2, 4, 6, 8, 10, 12]
    assert max(validated)[1] == 2
    assert steps(path) == [2, 8, 12]
    assert [checkpoint_damage(folder) for folder in path.glob("checkpoints/step-*")] == [None] * 3


def test_one_that_is_no_longer_the_best_goes_and_a_step_is_written_once(tmp_path: Path, monkeypatch) -> None:
    """Also if the last evaluation finds a better one, whose checkpoint was written before. A step may be due by several
    rules, and a resume begins with it."""
    written: list[int] = []
    write = Saver._write
    monkeypatch.setattr(Saver, "_write", lambda self, step, *rest: (written.append(step), write(self, step, *rest))[1])
    known(monkeypatch, {4: 0.1, 8: 0.2, 12: 0.3})
    sections = {"evaluate": "{every: 4}", "checkpoint": "{every: 4, keep: 1, best: discriminator_auc}"}
    path = run(experiment(tmp_path, **sections), tmp_path / "run")
    assert (written, steps(path)) == ([4, 8, 12], [12])
    execute.resume(path, "cpu")
    assert written == [4, 8, 12]


def test_a_shorter_run_has_no_checkpoint_after_its_end(path: Path) -> None:
    """A damaged checkpoint of a later step would be taken for the newest."""
    (path / "checkpoints" / "step-00000012" / "MANIFEST.json").unlink()
    execute.resume(path, "cpu", ["train.steps=10"])
    assert steps(path) == [8, 10]
    assert {part.path.name for part in read_run(path).parts.values()} == {"step-00000010"}


def test_a_run_that_goes_back_is_not_finished_before_its_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its page, examples and measures belong to discarded weights; a run that does not go back keeps them."""
    derived = ("report.html", "examples.json", "measures.json")
    for name in derived:
        (path / name).write_text("[]")
    execute.resume(path, "cpu")
    assert all((path / name).is_file() for name in derived)
    assert RunDirectory(path).finished()
    spoil(path / "checkpoints" / "step-00000012" / "state.safetensors")

    def killed(_: Console, values: dict[str, Any], metrics: object) -> None:
        if values["step"] == 12:
            raise Killed

    monkeypatch.setattr(Console, "record", killed)
    with pytest.raises(Killed):
        execute.resume(path, "cpu")
    assert RunDirectory(path).has_checkpoint(8)
    assert not any((path / name).exists() for name in derived)
    assert not RunDirectory(path).finished()


def test_a_metric_that_is_not_there_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    file = experiment(tmp_path, checkpoint="{best: discriminator_auk}")
    with pytest.raises(ConfigError, match=r"checkpoint\.best: .*Did you mean 'discriminator_auc'\?"):
        run(file, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the state of its step, as in a synchronous save; there are never fewer sound checkpoints than before."""
    plain = run(experiment(tmp_path, checkpoint="{every: 4, keep: 9}"), tmp_path / "plain")
    reached, release, seen = [0], threading.Event(), list[int]()
    save = saving.save

    def slow(folder: Path, step: int, *given: Any) -> Any:
        release.wait(30)
        seen.append(reached[0])
        done = save(folder, step, *given)
        # Training has changed the tensors since; a copy is written.
        written = tensors(folder.parent, step)
        assert all(tensor.equal(written[name]) for name, tensor in tensors(plain, step).items())
        assert [checkpoint_damage(saved) for saved in folder.glob("step-*")] == [None]
        return done

    def act(done: int) -> None:
        reached[0] = done
        if done == 7:
            release.set()

    monkeypatch.setattr(saving, "save", slow)
    at(monkeypatch, act)
    path = run(experiment(tmp_path / "two", checkpoint="{every: 4, keep: 1, asynchronous: true}"), tmp_path / "run")
    assert seen[0] == 7
    assert steps(path) == [12]
    tiny.assert_same(plain, path)


def test_a_disk_that_fails_in_the_background_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise CheckpointError("no space")

    monkeypatch.setattr(saving, "save", failing)
    with pytest.raises(CheckpointError, match="no space"):
        run(experiment(tmp_path, checkpoint="{every: 12, asynchronous: true}"), tmp_path / "run")


def test_what_is_not_finite_is_never_written(tmp_path: Path) -> None:
    spoil = {"optimizer": "{type: adamw, weight_decay: 1.0e+38}", "train": f"{TRAIN[:-1]}, learning_rate: 1000.0}}"}
    file = experiment(tmp_path, checkpoint="{every: 1, keep: 50}", **spoil)
    with pytest.raises(DivergedError, match=r"step \d+: .*\(and \d+ more tensors\) are no longer finite"):
        run(file, tmp_path / "run")
    for step in steps(tmp_path / "run"):
        assert all(torch.isfinite(tensor).all() for tensor in tensors(tmp_path / "run", step).values())


def test_checkpoints_have_the_rights_of_other_files(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("")
    usual = (tmp_path / "other").stat().st_mode
    folder = whole / "checkpoints" / "step-00000012"
    assert {file.name: file.stat().st_mode for file in folder.iterdir()} == dict.fromkeys(
        ("MANIFEST.json", "state.json", "state.safetensors"), usual
    )


def test_a_run_without_memory_is_saved_and_continues_with_less(tmp_path: Path) -> None:
    """The remedy in the message works for the run."""
    file, path = spying(tmp_path, objective="{type: spy, greed: 6}", checkpoint="{every: 100}"), tmp_path / "run"
    with pytest.raises(Exception, match=r"--set train\.micro_batch_size"):
        run(file, path)
    assert tiny.state(path)["step"] == 6


def test_what_the_disk_refused_to_remove_is_removed_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also leftovers of the last checkpoint, after which nothing is pruned."""
    refused = list[Path]()

    def refuse(path: Path, **options: Any) -> None:
        if path.name.endswith(".old") and path.is_dir() and path not in refused:
            refused.append(path)
        else:
            rmtree(path, **options)

    rmtree = shutil.rmtree
    monkeypatch.setattr("electra_lab.storage.checkpoint.shutil.rmtree", refuse)
    path = run(experiment(tmp_path, checkpoint="{every: 4, keep: 1}"), tmp_path / "run")
    assert refused[-1].name == ".step-00000008.old"
    assert [folder.name for folder in (path / "checkpoints").iterdir()] == ["step-00000012"]
