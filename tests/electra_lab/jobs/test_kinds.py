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

ARGUMENTS = {"check": 2, "resume": 3, "report": 1}  # how many each command passes


def test_every_kind_of_file_has_a_row() -> None:
    assert {kind.name for kind in KINDS} == {*KEYS, "experiment"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_function_is_there_and_takes_what_commands_give(kind: Kind) -> None:
    assert kind.functions.keys() == {"schema", *ARGUMENTS}
    assert kind.schema.model_fields
    for verb, number in ARGUMENTS.items():
        inspect.signature(kinds.resolve_name(kind.functions[verb])).bind(*range(number))


def test_a_folder_of_jobs_is_refused_with_one_of_them(tmp_path: Path) -> None:
    """It names the newest run, or one with a similar name, whether a resume, a run directory or a model is opened."""
    marks = {"sweep": "plan.json", "20261102-a": "source.yaml", "20261101-b": "source.yaml", "notes": "text.txt"}
    for age, (name, mark) in enumerate(marks.items()):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".lock").touch()
        (tmp_path / name / mark).touch()
        os.utime(tmp_path / name / mark, (100 - age, 100 - age))
        os.utime(tmp_path / name, (age, age))  # as if reports had been rewritten
    for refused in (of_folder, RunDirectory.open, lambda path: read_config(locate(str(path)))):
        with pytest.raises(LabError, match=rf" Did you mean {tmp_path}/20261102-a,"):
            refused(tmp_path)
        with pytest.raises(LabError, match=rf" Did you mean {tmp_path}/20261102-a,"):
            refused(tmp_path / "other")
        with pytest.raises(LabError, match=rf" Did you mean {tmp_path}/20261101-b\?"):
            refused(tmp_path / "20261101-c")


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
