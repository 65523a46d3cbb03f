"""A small ablation that really runs, and its files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from electra_lab.jobs.endings import exit_code
from electra_lab.jobs.sweeps import cells, run
from electra_lab.launchers._command import log_of
from electra_lab.storage.ablation_folder import AblationFolder
from registry import Command, Outcome
from tests.electra_lab.jobs.pretraining.tiny import timeless as lines
from tests.helpers import ROOT, write_experiment

STEPS = 8
FILE = """\
name: sizes
question: Does it run?
base: tiny.yaml
set: {{checkpoint.every: 2, train.log_every: 2}}
vary: {{generator.scale: [0.5, 1.0]}}
seeds: {seeds}
budget: {{steps: {steps}}}
measure:
  - {{type: fixed_corruption, steps: 4}}
  - {{type: pretraining}}
  - {{type: detection_probe, rows: 8}}
launcher: {launcher}
{more}
"""
PROCESSES = "{type: local, workers: 2, threads: 1}"
HERE = "{type: in_process}"


class InProcess:
    """Run the cells one after the other in this process, for tests that are not about processes."""

    here = True

    def __init__(self, /, *, workers: int = 1, threads: int = 1) -> None: ...

    def check(self) -> None: ...

    def __call__(self, commands: Mapping[str, Command], folder: Path, /) -> Iterator[tuple[str, Outcome]]:
        for id, (*_, device, _, path, _) in commands.items():
            log = log_of(folder, id).open("a", encoding="utf-8", buffering=1)
            with log, redirect_stderr(log), redirect_stdout(log):
                outcome = worked(Path(path), id, device)
            yield id, outcome


def worked(path: Path, id: str, device: str = "cpu") -> Outcome:
    """Do the work of the command `cell` in this process."""
    try:
        cells.work(path, id, device)
    except BaseException as error:
        print(error)
        here = error.__traceback__
        error.__traceback__ = here and here.tb_next  # without this file, which counts as a plug-in
        return Outcome(exit_code(error), str(error))
    return Outcome(0)


def write(
    folder: Path, seeds: str = "[0, 1]", steps: int = STEPS, more: str = "", launcher: str = PROCESSES, **sections: str
) -> Path:
    write_experiment(folder, **{"data": "{sequence_length: 16, held_out: 0.3, store: store}", **sections})
    file = folder / "sizes.yaml"
    file.write_text(FILE.format(seeds=seeds, steps=steps, more=more, launcher=launcher), encoding="utf-8")
    return file


def ablate(file: Path, out: Path, **options: Any) -> Path:
    return run.ablate(file, [], out, "cpu", options.get("launcher"), options.get("workers"))


def start(file: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "electra_lab", "ablate", str(file), "--out", str(out), "--device", "cpu", *options]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def first(out: Path) -> str:
    """Return the id of the first cell."""
    return AblationFolder(out).plan.cells[0].id


def state_of(path: Path, steps: int = STEPS) -> Path:
    return path / "checkpoints" / f"step-{steps:08d}" / "state.safetensors"


def weights(path: Path, steps: int = STEPS) -> bytes:
    return state_of(path, steps).read_bytes()


def stamps(out: Path) -> dict[Path, int]:
    """Return the modification time of each file of the runs."""
    return {path: path.stat().st_mtime_ns for path in (out / "cells").rglob("*") if path.is_file()}


def contents(out: Path) -> dict[str, Any]:
    """Return the contents of a folder that must not depend on how it was produced."""
    ids = [file.stem for file in sorted((out / "plan").iterdir())]
    return {
        id: (
            weights(out / "cells" / id, 4 if id.startswith("reference") else STEPS),
            lines(out / "cells" / id),
            AblationFolder(out).measures(id),
        )
        for id in ids
    }
