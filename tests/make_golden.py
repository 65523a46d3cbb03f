"""Make the golden directories of a release: python -m tests.make_golden FOLDER, once, when a format is new.

FOLDER must not exist; choose a short path, as the run directory records it. Copy it to tests/data/golden/<version>.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

from electra_lab.jobs.pretraining import execute
from electra_lab.presentation.console import Console
from registry.errors import Preempted
from tests.helpers import write_experiment

STOP = 7
SECTIONS = {
    "data": "{sequence_length: 16, held_out: 0.3, store: store}",
    "schedules": "{learning_rate: {warmup_steps: 3}}",
    "train": "{steps: 12, batch_size: 4, precision: fp32, log_every: 5}",
    "evaluate": "{every: 6, examples: 2}",
    "checkpoint": "{every: 4, keep: 2}",
}


def make(folder: Path) -> None:
    """Write corpus, store, a finished run, and one that was stopped after step STOP."""
    file = write_experiment(folder, **SECTIONS)
    execute.run(file, [], folder / "finished", "cpu")

    def advance(_: Console, done: int) -> None:
        if done == STOP:
            os.kill(os.getpid(), signal.SIGTERM)

    with patch.object(Console, "advance", advance), suppress(Preempted):
        execute.run(file, [], folder / "stopped", "cpu")
    for run in (folder / "finished", folder / "stopped"):
        provenance = json.loads((run / "provenance.json").read_text())
        # Not needed: the path of the program, and the kernel of the machine.
        provenance |= {"command": ["electra-lab", "run", "tiny.yaml"], "platform": "Linux"}
        (run / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n")
    for name in ("finished/report.html", "finished/best.json", "stopped/report.html"):
        (folder / name).unlink()
    shutil.rmtree(folder / "finished" / "checkpoints" / "step-00000008")
    for leftover in [*folder.glob("store/.*"), *folder.glob("store/*/.*"), *folder.glob("*/.lock")]:
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
