"""clean: what goes, what stays, and that a kill in the middle harms nothing."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electra_lab.data.store import lock_of
from electra_lab.jobs import cleaning
from electra_lab.jobs.cleaning import CHECKPOINT, DAMAGED, LEFTOVER, STORE, clean
from electra_lab.jobs.pretraining import execute
from electra_lab.storage.checkpoint import steps
from registry.errors import CheckpointError
from tests.electra_lab.jobs.pretraining.tiny import experiment

SECTIONS = {
    "data": "{sequence_length: 16, held_out: 0.3, store: .store}",
    "train": "{steps: 6, batch_size: 2, precision: fp32, learning_rate: 0.3}",  # so that the best is an earlier one
    "evaluate": "{every: 1}",
    "checkpoint": "{every: 1, keep: 9, milestones: {tokens: [128]}}",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    execute.run(experiment(folder, **SECTIONS), [], folder / "one", "cpu")
    return folder


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    """A run, an older version of its token store, and what killed processes left, all two hours old."""
    runs = Path(shutil.copytree(made, tmp_path / "runs"))
    (store,) = [path for path in (runs / ".store").iterdir() if not path.name.startswith(".")]
    shutil.copytree(store, store.with_name("0" * 16))
    for folder in (f".store/.{store.name}.old", ".store/.1111111111111111.old", "one/checkpoints/.step-00000002.old"):
        shutil.copytree(store, runs / folder)
    for file in ("one/.report.html.01234567.part", "ablation/plan.json", "ablation/damaged/x-0", ".mine.01234567.part"):
        (runs / file).parent.mkdir(parents=True, exist_ok=True)
        (runs / file).write_text("half")
    return aged(runs)


def aged(folder: Path) -> Path:
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (0, 0), follow_symlinks=False)
    return folder


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def listed(runs: Path, **options: Any) -> dict[str, set[str]]:
    """Return the paths by their kind."""
    found = dict[str, set[str]]()
    for item in clean(runs, **options):
        found.setdefault(item.kind, set()).add(str(item.path.relative_to(runs)))
    return found


def expected(runs: Path) -> dict[str, set[str]]:
    (store,) = [path.name for path in (runs / ".store").iterdir() if path.name not in ("0" * 16, *hidden(runs))]
    leftovers = {f".store/.{store}.old", "one/checkpoints/.step-00000002.old", "one/.report.html.01234567.part"}
    best = int((runs / "one" / "best.json").read_text().partition('"step": ')[2].partition(",")[0])
    assert best not in (4, 6), "the best is neither the newest nor a milestone"
    older = {f"one/checkpoints/step-{step:08d}" for step in {1, 2, 3, 5} - {best}}
    return {CHECKPOINT: older, STORE: {f".store/{'0' * 16}"}, LEFTOVER: leftovers, DAMAGED: {"ablation/damaged/x-0"}}


def hidden(runs: Path) -> list[str]:
    return [path.name for path in (runs / ".store").iterdir() if path.name.startswith(".")]


def test_what_goes_is_listed_with_its_size_and_only_then_removed(runs: Path) -> None:
    before, wanted = files(runs), expected(runs)
    assert listed(runs) == wanted
    sizes = {item.path.name: item.bytes for item in clean(runs)}
    assert sizes["x-0"] == 4
    inside = (runs / ".store" / ("0" * 16)).iterdir()
    assert sizes["0" * 16] == sum(path.stat().st_size for path in inside)
    assert files(runs) == before
    assert listed(runs, remove=True) == wanted
    gone = {path for path in before - files(runs) if not path.endswith((".lock", ".verified"))}
    roots = set[str]().union(*wanted.values())
    assert {path for path in gone if not any(path.startswith(f"{root}/") for root in roots)} == roots
    assert clean(runs) == []
    execute.resume(runs / "one", "cpu", ["train.steps=7"])
    assert steps(runs / "one" / "checkpoints")[-1] == 7


@pytest.mark.parametrize("kind", ["run", "store"])
def test_what_a_process_holds_is_left_alone(runs: Path, kind: str) -> None:
    place = ("one", CHECKPOINT) if kind == "run" else (".store/" + "0" * 16, STORE)
    file = runs / "one" / ".lock" if kind == "run" else lock_of(runs / ".store" / ("0" * 16))
    before = {path for path in files(runs) if path.startswith(place[0])}
    with file.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert place[1] not in listed(runs)
        assert place[1] not in listed(runs, remove=True)
    assert {path for path in files(runs) if path.startswith(place[0])} == before


@pytest.mark.parametrize("when", ["before the list", "after it"])
def test_a_run_that_begins_again_meanwhile_is_left_alone(runs: Path, monkeypatch, when: str) -> None:
    if when == "after it":  # it is noticed by its lock
        monkeypatch.setattr(cleaning, "is_held", lambda lock: False)
    with (runs / "one" / ".lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert CHECKPOINT not in listed(runs, remove=True)
    assert steps(runs / "one" / "checkpoints") == [0, 1, 2, 3, 4, 5, 6]


def test_links_are_not_followed(runs: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    runs.joinpath("one").rename(elsewhere / "one")
    (runs / "one").symlink_to(elsewhere / "one")
    shutil.copytree(elsewhere / "one", runs / "two", symlinks=True)
    (runs / "two" / "checkpoints").rename(elsewhere / "checkpoints")
    (runs / "two" / "checkpoints").symlink_to(elsewhere / "checkpoints")
    store = Path(shutil.copytree(runs / ".store" / ("0" * 16), elsewhere / "store"))
    (runs / ".store" / ("2" * 16)).symlink_to(aged(store))
    before = files(elsewhere)
    clean(aged(runs), remove=True)
    assert files(elsewhere) == before
    assert (runs / ".store" / ("2" * 16)).is_symlink()
    shutil.rmtree(runs / "two")
    assert STORE not in listed(aged(runs)), "a linked run uses it"
    assert not (runs / ".store" / ("0" * 16)).exists()


def in_ablation(runs: Path, folder: Path) -> Path:
    """Move the run into the folder of an ablation, as a cell."""
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text("half")
    id = json.loads((runs / "one" / "provenance.json").read_text())["id"]
    (runs / "one").rename(folder / "cells" / id)
    return aged(folder)


def test_a_linked_ablation_keeps_the_stores_of_its_cells(runs: Path, tmp_path: Path) -> None:
    elsewhere = in_ablation(runs, tmp_path / "elsewhere")
    (runs / "linked").symlink_to(elsewhere)
    before = files(elsewhere)
    found = listed(aged(runs), remove=True)
    assert (found[STORE], CHECKPOINT in found) == ({f".store/{'0' * 16}"}, False)
    assert files(elsewhere) == before
    (runs / "linked").unlink()
    assert len(listed(aged(runs))[STORE]) == 1, "nothing uses it any more"


def test_an_ablation_of_which_a_process_has_claimed_a_part_is_left_alone(runs: Path) -> None:
    folder = in_ablation(runs, runs / "ablation")
    (folder / "claims").mkdir()
    (folder / "claims" / "two").touch()
    assert {CHECKPOINT, DAMAGED} <= listed(aged(runs)).keys()
    before = files(folder)
    with (folder / "claims" / "two").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not {CHECKPOINT, DAMAGED} & listed(runs, remove=True).keys()
    assert files(folder) == before


def test_a_run_that_was_set_aside_as_damaged_goes_as_a_whole(runs: Path) -> None:
    """A folder with this name that is not of an ablation stays, and may hold everything."""
    runs = runs.rename(runs.with_name("damaged"))
    assert CHECKPOINT in listed(runs)
    shutil.copytree(runs / "one", runs / "ablation" / "damaged" / "one-0")
    (runs / "damaged").mkdir()
    (runs / "damaged" / "mine").write_text("whole")
    (runs / "one").rename(runs / "damaged" / "one")
    wanted = {f"ablation/damaged/{name}" for name in ("one-0", "x-0")}
    assert listed(aged(runs))[DAMAGED] == wanted
    assert not any(name.startswith("ablation/damaged/") for name in listed(runs).get(CHECKPOINT, ()))
    assert listed(runs, remove=True)[DAMAGED] == wanted
    assert not any((runs / name).exists() for name in wanted)
    assert (runs / "damaged" / "mine").exists()
    os.utime(runs / "ablation" / "plan.json")
    (runs / "ablation" / "damaged" / "new").write_text("half")
    assert DAMAGED not in listed(runs), "it may still be looked at"


def test_what_is_new_is_left_alone(runs: Path) -> None:
    for name in (".store/" + "0" * 16, "one/.report.html.01234567.part"):
        os.utime(runs / name)
    found = listed(runs)
    assert STORE not in found
    assert "one/.report.html.01234567.part" not in found[LEFTOVER]


@pytest.mark.parametrize("killed_at", range(4))
def test_a_kill_in_the_middle_harms_nothing(runs: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int) -> None:
    removals, rmtree = iter(range(9)), shutil.rmtree

    def killed(path: Path) -> None:
        if next(removals) == killed_at:
            next(file for file in Path(path).rglob("*") if file.is_file()).unlink()
            raise KeyboardInterrupt
        rmtree(path)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            clean(runs, remove=True)
    clean(aged(runs), remove=True)
    assert clean(runs) == []
    assert not list((runs / "one").glob("**/*.part"))
    execute.resume(runs / "one", "cpu", ["train.steps=7"])


def test_a_run_that_cannot_be_read_stops_it(runs: Path) -> None:
    (runs / "one" / "provenance.json").write_text("{}")
    before = files(runs)
    with pytest.raises(CheckpointError, match=r"one/provenance\.json"):
        clean(runs, remove=True)
    assert files(runs) == before


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(b"x"), Path.unlink], ids=["damaged", "missing"])
def test_the_newest_is_the_newest_sound_one(runs: Path, damage: Callable[[Path], object]) -> None:
    damage(runs / "one" / "checkpoints" / "step-00000006" / "state.safetensors")
    assert not {f"one/checkpoints/step-0000000{step}" for step in (5, 6)} & listed(runs)[CHECKPOINT]


def test_a_checkpoint_that_a_job_names_stays(runs: Path) -> None:
    """As a fine-tuning of one of its steps, in the folder or linked into it."""
    older = listed(runs)[CHECKPOINT]
    for place, link in ((runs / "tuned", None), (runs.parent / "elsewhere", runs / "linked")):
        step = min(int(name.rpartition("-")[2]) for name in older)
        (place / "seed-0").mkdir(parents=True)
        (place / "finetuning.yaml").write_text(f"model: {runs / 'one'}\nstep: {step}\n")
        if link:
            link.symlink_to(place)
        kept = {name for name in older if name.endswith(f"{step:08d}")}
        assert listed(runs)[CHECKPOINT] == older - kept
        older -= kept
