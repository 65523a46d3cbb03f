"""Ablations in these tests run in this process, draw no pictures and do not measure memory: other tests do both."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from electra_lab.jobs.sweeps import run
from electra_lab.planning.forecast import Workload
from registry import launchers
from tests.electra_lab.jobs.sweeps.small import HERE, InProcess, ablate, write
from tests.electra_lab.presentation.synthetic import leave_out_pictures


@pytest.fixture(scope="package", autouse=True)
def _in_this_process() -> Iterator[None]:
    with launchers.isolated():
        launchers.register("in_process")(InProcess)
        yield


@pytest.fixture(scope="package", autouse=True)
def _without_pictures_and_memory() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        leave_out_pictures(patch)
        patch.setattr(Workload, "working_bytes", lambda _: 1)
        patch.setattr(Workload, "evaluation_bytes", lambda _: 1)
        yield


@pytest.fixture(scope="package")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(file, folder) of an ablation that is finished: two variants over two seeds. Tests must not change it."""
    folder = tmp_path_factory.mktemp("ablation")
    file = write(folder, launcher=HERE)
    return file, ablate(file, folder / "out")


@pytest.fixture
def out(done: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the finished ablation that a test may change."""
    return Path(shutil.copytree(done[1], tmp_path / "out"))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PATIENCE", 0.01)


@pytest.fixture
def here(done: tuple[Path, Path]) -> Path:
    """The file of the finished ablation."""
    return done[0]


@pytest.fixture
def quick(here: Path) -> Path:
    """The file with fewer seeds and measures; its texts are tokenized already."""
    file = here.with_name("quick.yaml")
    text = here.read_text().replace("seeds: [0, 1]", "seeds: [0]").replace("  - {type: detection_probe, rows: 8}\n", "")
    file.write_text(text)
    return file
