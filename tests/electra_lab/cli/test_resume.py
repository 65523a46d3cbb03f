"""`resume`: refusals in a sentence, and folders that another version wrote."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from electra_lab.storage.provenance import FORMAT
from electra_lab.storage.run_directory import RunDirectory
from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module, run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    train = {"train": "{steps: 3, batch_size: 2, precision: fp32}", "evaluate": "{examples: 1}"}
    with for_a_module():
        return run(experiment(folder, **train), folder / "run")


@pytest.fixture
def path(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.parametrize("other", [None, FORMAT + 1])
def test_a_folder_of_another_format_is_left_as_it_is(lab: Any, path: Path, other: int | None) -> None:
    """As the version before wrote it, without a format and without the metrics that the objective declares."""
    file = path / "provenance.json"
    provenance = json.loads(file.read_text())
    before = {key: value for key, value in provenance.items() if key not in ("format", "metrics")}
    file.write_text(json.dumps(before | ({"format": other} if other else {}) | {"electra_lab": "0.5"}))
    err = lab.fails(4, "resume", path)
    said = f"{path}: was written by electra_lab 0.5 in format {other or 1}; this version reads format {FORMAT}. "
    assert err.startswith(said)
    (path / "report.html").write_text("as it was")
    assert lab("report", path) == (4, "", err)
    assert (path / "report.html").read_text() == "as it was"


def test_a_run_that_is_in_use_is_left_alone(lab: Any, path: Path) -> None:
    with RunDirectory(path).locked():
        assert lab("resume", path) == (2, "", f"{path}: is in use by process {os.getpid()}.\n")
    assert lab("resume", path)[0] == 0


def test_a_folder_that_is_not_a_run_is_refused(lab: Any, tmp_path: Path) -> None:
    err = lab.fails(2, "resume", tmp_path)
    assert err.startswith(f"{tmp_path}: is not the folder of a job")
    assert "config.yaml and provenance.json" in err
