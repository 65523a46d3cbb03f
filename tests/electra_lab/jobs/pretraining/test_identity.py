"""Runs whose files belong to another run, or change while they train."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from electra_lab.config.load import load
from electra_lab.data.rows import Stream
from electra_lab.jobs.endings import exit_code
from electra_lab.jobs.pretraining import execute
from electra_lab.presentation.console import Console
from electra_lab.presentation.run_page import write_report
from electra_lab.pretrained.opening import read_run
from electra_lab.storage import checkpoint, files
from electra_lab.storage.checkpoint import read_model
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import CheckpointError, ConfigError, OutOfMemoryError
from tests.electra_lab.jobs.pretraining.tiny import SPY, run, spying, steps, tensors, timeless

Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def other(finished: Path) -> Path:
    """A run of another seed: its networks and its text are those of the finished run."""
    return run(finished / "tiny.yaml", finished / "other", "seed=1")


def replace(path: Path, other: Path, name: str) -> None:
    if (path / name).is_dir():
        shutil.rmtree(path / name)
        shutil.copytree(other / name, path / name)
    else:
        shutil.copy(other / name, path / name)


def test_checkpoints_of_another_run_are_passed_over_and_refused(path: Path, whole: Path, other: Path, capsys) -> None:
    before = tensors(whole)
    for step in steps(path)[1:]:
        replace(path, other, f"checkpoints/step-{step:08d}")
    last = steps(path)[-1]
    best = RunDirectory(path).best_checkpoint()
    for step in (None, last, best and best.step):
        with pytest.raises(CheckpointError, match=f"step-{last:08d}: it belongs to "):
            read_model(path / "checkpoints", step)
    with pytest.raises(CheckpointError):
        read_run(path)
    execute.resume(path, "cpu")
    assert f"step-{last:08d}: it belongs to {RunDirectory(other).provenance().id}, not to " in capsys.readouterr().err
    assert all(before[name].equal(tensor) for name, tensor in tensors(path).items())
    assert timeless(path) == timeless(whole)
    shutil.rmtree(path / "checkpoints")
    shutil.copytree(other / "checkpoints", path / "checkpoints")
    with pytest.raises(CheckpointError, match="none of the 2 checkpoints is usable"):
        execute.resume(path, "cpu")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("config.yaml", ConfigError),
        ("provenance.json", (ConfigError, CheckpointError)),
        ("metrics.jsonl", CheckpointError),
        ("vocabulary.safetensors", CheckpointError),
    ],
)
def test_files_of_another_run_are_refused(path: Path, other: Path, name: str, kind: Any) -> None:
    replace(path, other, name)
    if name != "metrics.jsonl":  # which no model needs
        with pytest.raises(kind):
            read_run(path)
    if name != "vocabulary.safetensors":  # which a page does not need, and a resume writes again
        for verb in (lambda: write_report(RunDirectory(path)), lambda: execute.resume(path, "cpu")):
            with pytest.raises(kind):
                verb()


def test_a_run_that_was_moved_or_copied_goes_on(path: Path, tmp_path: Path) -> None:
    moved = path.rename(tmp_path / "moved")
    shutil.copytree(moved, tmp_path / "copied")
    for place in (moved, tmp_path / "copied"):
        assert read_run(place).run.step == 12
        execute.resume(place, "cpu", ["train.steps=14"])
        assert steps(place)[-1] == 14


def at_step(monkeypatch: pytest.MonkeyPatch, step: int, act: Callable[[], object]) -> None:
    """Do something after a step of the next training."""
    done: list[int] = []

    def advance(*_: object) -> None:
        done.append(1)
        if len(done) == step:
            act()

    monkeypatch.setattr(Console, "advance", advance)


def lose_lock(path: Path) -> None:
    (path / ".lock").unlink()
    (path / ".lock").touch()


def cut_records(path: Path) -> None:
    os.truncate(path / "metrics.jsonl", 20)


INTRUSIONS: dict[str, Change] = {
    "the lock is removed": lambda path: (path / ".lock").unlink(),
    "the lock is another file": lose_lock,
    "the records are cut": cut_records,
    "the records are deleted": lambda path: (path / "metrics.jsonl").unlink(),
    "the records have one more": lambda path: (path / "metrics.jsonl").open("a").write('{"step": 6}\n'),
}


@pytest.mark.parametrize("name", INTRUSIONS)
def test_a_run_directory_that_changes_while_it_trains_ends_the_run(
    finished, tmp_path, monkeypatch, whole, name
) -> None:
    at_step(monkeypatch, 6, lambda: INTRUSIONS[name](tmp_path / "run"))
    with pytest.raises(CheckpointError) as caught:
        run(finished / "tiny.yaml", tmp_path / "run")
    assert exit_code(caught.value) == 4
    assert str(tmp_path / "run") in str(caught.value)
    assert steps(tmp_path / "run") == [4]
    if "another file" in name or "one more" in name or "cut" in name:
        return
    monkeypatch.undo()
    (tmp_path / "run" / ".lock").touch()
    execute.resume(tmp_path / "run", "cpu")
    assert all(tensors(whole)[key].equal(value) for key, value in tensors(tmp_path / "run").items())
    if not name.startswith("the records are"):
        assert timeless(tmp_path / "run") == timeless(whole)


@pytest.mark.parametrize("how", ["written", "cut", "removed"])
def test_a_token_store_that_changes_while_it_is_read_ends_the_run(finished, tmp_path, monkeypatch, how: str) -> None:
    (store,) = (folder for folder in (finished / "store").iterdir() if not folder.name.startswith("."))
    own = Path(shutil.copytree(store, tmp_path / "store" / store.name))
    file = own / "train-00000.bin"

    def change() -> None:
        if how == "removed":
            file.unlink()
        elif how == "cut":
            os.truncate(file, 2)
        else:
            file.write_bytes(file.read_bytes()[::-1])

    at_step(monkeypatch, 6, change)
    with pytest.raises(CheckpointError, match=r"train-00000\.bin: the token store has changed") as caught:
        run(finished / "tiny.yaml", tmp_path / "run", f"data.store={own}")
    assert exit_code(caught.value) == 4
    assert steps(tmp_path / "run") == [4]


def test_an_array_in_memory_has_no_file_that_could_change() -> None:
    stream = Stream([np.arange(5), np.arange(5, 9)], [])
    assert stream.read(np.array([[0, 8], [4, 5]])).tolist() == [[0, 8], [4, 5]]


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "no"), RuntimeError("can't allocate memory")])
def test_too_little_memory_while_a_checkpoint_is_saved_is_not_damage(finished, tmp_path, monkeypatch, error) -> None:
    def save_file(*_: object) -> None:
        raise error

    monkeypatch.setattr(checkpoint, "save_file", save_file)
    with pytest.raises((OutOfMemoryError, OSError)) as caught:
        run(finished / "tiny.yaml", tmp_path / "run")
    assert exit_code(caught.value) == 6
    with pytest.raises(OSError), files.disk(tmp_path):  # noqa: PT011
        raise OSError(errno.ENOMEM, "no")


def test_a_config_imports_the_copies_of_plug_ins_next_to_it(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    shutil.copy(SPY, plugin)
    file = spying(tmp_path)
    file.write_text(file.read_text().replace(str(SPY), "mine.py"))
    path = run(file, tmp_path / "run", "train.steps=4")
    before = plugin.read_bytes()
    plugin.unlink()
    path = path.rename(tmp_path / "moved")
    (copy,) = yaml.safe_load((path / "config.yaml").read_text())["imports"]
    assert not Path(copy).is_absolute()
    assert (path / copy).read_bytes() == before
    (loaded,) = load(path / "config.yaml").plugins
    assert loaded.source == before
    run(path / "config.yaml", tmp_path / "again")
    execute.resume(path, "cpu", ["train.steps=6"])
    assert yaml.safe_load((path / "config.yaml").read_text())["imports"] == [copy]
    assert json.loads((path / "provenance.json").read_text())["changes"][-1]["values"] == {"train.steps": [4, 6]}
