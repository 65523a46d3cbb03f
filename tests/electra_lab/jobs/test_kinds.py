"""The table of job kinds: each command finds its function, and each file and folder its row."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import pytest

from electra_lab.config.load import KINDS as KEYS
from electra_lab.jobs import kinds
from electra_lab.jobs.kinds import ABLATION, EXPERIMENT, FINETUNING, KINDS, Kind, of_file, of_folder
from electra_lab.pretrained.hugging_face import locate, read_config
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import ConfigError, LabError

ARGUMENTS = {"check": 2, "run": 4, "dry_run": 4, "resume": 3, "report": 1}  # that every command gives


def test_every_kind_of_file_has_a_row() -> None:
    assert {kind.name for kind in KINDS} == {*KEYS, "experiment"} - {"suite"}  # which is refused by its new form


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_function_is_there_and_takes_what_commands_give(kind: Kind) -> None:
    assert kind.functions.keys() >= {"schema", "check", "run", "resume", "report"}
    assert kind.schema.model_fields
    for verb, number in ARGUMENTS.items():
        if verb in kind.functions:
            function = kinds.resolve_name(kind.functions[verb])
            more = 2 if kind is ABLATION and "run" in verb else 0  # launcher and workers
            inspect.signature(function).bind(*range(number + more))


def test_a_folder_of_jobs_is_refused_with_the_newest_of_them(tmp_path: Path) -> None:
    """Whatever opens it: resuming, a run directory, a trained model."""
    for age, name in enumerate(("20261102-a", "20261101-b", "notes")):
        (tmp_path / name).mkdir()
        if name != "notes":
            (tmp_path / name / "provenance.json").touch()
        os.utime(tmp_path / name, (100 - age, 100 - age))
    for refused in (of_folder, RunDirectory.open, lambda path: read_config(locate(str(path)))):
        with pytest.raises(LabError, match=rf" Did you mean {tmp_path}/20261102-a,"):
            refused(tmp_path)
        with pytest.raises(LabError, match=rf" Did you mean {tmp_path}/20261102-a,"):
            refused(tmp_path / "20261102-b")


def test_files_and_folders_find_their_row(tmp_path: Path) -> None:
    for text, kind in (("vary: {}", ABLATION), ("task: {}", FINETUNING), ("seed: 1", EXPERIMENT), ("[", EXPERIMENT)):
        (tmp_path / "file.yaml").write_text(text)
        assert of_file(tmp_path / "file.yaml") is kind
    for kind in KINDS:
        folder = tmp_path / kind.name
        folder.mkdir()
        for mark in kind.marks:
            with pytest.raises(ConfigError, match="is not the folder of a job"):
                of_folder(folder)
            (folder / mark).write_text("{}")
        assert of_folder(folder) is kind
    (tmp_path / "experiment" / "config.yaml").write_text("task: {}")
    with pytest.raises(ConfigError, match="seed of a fine-tuning"):
        of_folder(tmp_path / "experiment")
    with pytest.raises(ConfigError, match="electra-lab ablate FILE --out"):
        ABLATION.do("resume", tmp_path / "ablation", "cpu", [])
