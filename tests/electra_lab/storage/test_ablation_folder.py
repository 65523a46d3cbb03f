"""The folder of an ablation: its files, claims and refusals. Its states: tests/electra_lab/jobs/sweeps."""

import json
import os
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from electra_lab.analysis.results import cell_result
from electra_lab.storage.ablation_folder import OTHERS, ROOMS, AblationFolder, is_ablation_folder
from registry.errors import CheckpointError, ConfigError
from tests.electra_lab.presentation.synthetic import CORRUPTION, OWN, SCALES, fail, write_folder


@pytest.fixture
def folder(tmp_path: Path) -> AblationFolder:
    where = AblationFolder.create(tmp_path / "made")
    (where.path / "cells" / "a").mkdir()
    return where


@pytest.fixture
def finished(tmp_path: Path) -> AblationFolder:
    return AblationFolder(write_folder(tmp_path / "finished", SCALES, (0, 1)))


def test_a_folder_has_its_rooms_and_may_exist_already(tmp_path: Path) -> None:
    for _ in range(2):
        where = AblationFolder.create(tmp_path / "a" / "b")
    assert {path.name for path in where.path.iterdir()} == set(ROOMS)
    assert where.run("x").path == where.path / "cells" / "x"
    assert where.experiment("x") == where.path / "plan" / "x.yaml"
    assert not is_ablation_folder(where.path)
    (where.path / "plan.json").touch()
    assert is_ablation_folder(where.path)


def test_a_folder_that_cannot_be_made_or_written_to_is_a_sentence(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=rf"^--out {tmp_path}/file/x: cannot be created \(Not a directory\)\.$"):
        AblationFolder.create(tmp_path / "file" / "x")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # tests may run as root, which may write anywhere
    with pytest.raises(ConfigError, match="is not writable"):
        AblationFolder.create(tmp_path / "a")


def test_measures_are_added_to_those_that_are_there(folder: AblationFolder) -> None:
    assert folder.measures("a").numbers == {}
    folder.note_measure("a", 4, "one-1", {"auc": 0.5})
    folder.note_measure("a", 4, "two-2", {})
    assert folder.measures("a").numbers == {"one-1": {"auc": 0.5}, "two-2": {}}
    folder.note_measure("a", 4, "one-1", {"auc": 0.25})
    assert folder.measures("a").numbers == folder.measures("a", 4).numbers == {"one-1": {"auc": 0.25}, "two-2": {}}
    assert folder.measures("a", 8).numbers == {}
    folder.note_measure("a", 8, "two-2", {"auc": 0.75})  # those of an earlier step are not mixed with it
    assert folder.measures("a").numbers == {"two-2": {"auc": 0.75}}


DAMAGED_MEASURES = [
    "",
    "null",
    *(
        json.dumps({"run": run, "step": 4, "numbers": numbers})
        for run, numbers in [
            ("a", {"one": 1}),
            ("a", {"one": {"auc": "0.5"}}),
            ("a", {"one": {"auc": True}}),
            ("b", {}),
        ]
    ),
]


@pytest.mark.parametrize("text", DAMAGED_MEASURES)
def test_damaged_measures_are_named_and_measured_again(folder: AblationFolder, text: str) -> None:
    file = folder.path / "cells" / "a" / "measures.json"
    file.write_text(text)
    with pytest.raises(CheckpointError, match=f"^{file}: [^\n]*$"):
        folder.measures("a")
    folder.note_measure("a", 4, "two", {"loss": 1.0})
    assert folder.measures("a").numbers == {"two": {"loss": 1.0}}


def test_a_failure_is_noted_with_its_attempts_until_it_is_removed(finished: AblationFolder) -> None:
    (finished.path / "failed").mkdir()
    plan = finished.plan
    (finished.path / "cells" / "v0-s0" / "measures.json").unlink()
    finished.note_failure("v0-s0", "it diverged", 3)
    result = cell_result(finished, plan, "v0-s0")
    assert (result.status, result.missing) == ("failed", (CORRUPTION, OWN))
    assert (result.metrics, result.error, result.attempts) == ({}, "it diverged", 3)
    finished.note_failure("v0-s0", None)
    assert cell_result(finished, plan, "v0-s0").status == "unmeasured"
    finished.note_failure("v0-s0", None)  # there is none to remove


@pytest.mark.parametrize("text", ["", "{}"])
def test_a_damaged_note_of_a_failure_is_named_with_a_cure(finished: AblationFolder, text: str) -> None:
    fail(finished.path, "v0-s0", "")
    file = finished.path / "failed" / "v0-s0.json"
    file.write_text(text)
    with pytest.raises(CheckpointError, match=rf"^{file}: .* Remove it\.$"):
        cell_result(finished, finished.plan, "v0-s0")


def test_a_claim_is_held_by_one(folder: AblationFolder) -> None:
    with folder.claimed("a") as mine, AblationFolder(folder.path).claimed("a") as theirs:
        assert (mine, theirs) == (True, False)
        assert (folder.is_claimed("a"), folder.is_claimed("b")) == (True, False)
    assert not folder.is_claimed("a")


def test_a_claim_can_be_waited_for(folder: AblationFolder) -> None:
    order = []

    def wait() -> None:
        with folder.claimed("a", wait=True) as mine:
            order.append(mine)

    with folder.claimed("a"):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(0.1)
        order.append("released")
    thread.join(10)
    assert order == ["released", True]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    where = AblationFolder(tmp_path / "out")
    where.refuse_other({"a"})  # it is not there
    where.path.write_text("mine")
    with pytest.raises(ConfigError, match="is not a folder"):
        where.refuse_other({"a"})
    where.path.unlink()
    AblationFolder.create(where.path)
    for name in OTHERS:
        (where.path / name).touch()
    (where.path / ".plan.json.0123abcd.part").touch()  # killed while it was written
    where.refuse_other({"a"})
    (where.path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="is not empty and not the folder of an ablation"):
        where.refuse_other({"a"})


def test_cells_of_another_plan_are_refused_and_more_cells_are_not(tmp_path: Path) -> None:
    where = AblationFolder.create(tmp_path)
    for id in ("a", "b", "reference-of-x-s1"):
        (tmp_path / "cells" / id).mkdir()
    where.refuse_other({"a", "b"})
    where.refuse_other({"a", "b", "c"})
    with pytest.raises(ConfigError, match=r"its cell b \(and 0 more\) is not in this one\. Seeds and variants may"):
        where.refuse_other({"a"})


def test_a_folder_that_cannot_be_read_is_a_sentence(folder: AblationFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "iterdir", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(ConfigError, match=r"cannot be read \(Permission denied\)"):
        folder.refuse_other(set())
