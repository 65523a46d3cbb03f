"""Two one-thread workers against one, and the cost of the launcher itself.

    python benchmarks/ablation_workers.py [--rounds 3] [--cells 6] [--steps 300]

Alternates between one worker and two over the same cells, in one process; reports the seconds, the median ratio, and
the cost of a cell beyond its own training and measuring. Imports and the first tokenizing are not counted: workers are
timed from the start of the first cell to the end of the last.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from electra_lab.jobs.sweeps import run as ablation
from electra_lab.launchers.local import Local
from electra_lab.storage.ablation_folder import AblationFolder
from electra_lab.testing import probes

BASE = Path(__file__).resolve().parents[1] / "experiments" / "transformer_tiny.yaml"
FILE = """\
name: workers
base: {base}
set: {{data.store: {store}, schedules.learning_rate.warmup_steps: 0}}
vary: {{generator.scale: [0.25, 0.5]}}
seeds: {seeds}
budget: {{steps: {steps}}}
measure: [{{type: pretraining}}]
"""


def timed(file: Path, workers: int) -> float:
    """Return the seconds from the start of the first cell to the end of the last."""
    with tempfile.TemporaryDirectory() as out:
        ablation.ablate(file, [], Path(out), "cpu", None, workers)
        where = AblationFolder(Path(out))
        cells = [where.run(cell.id).path for cell in where.plan.cells]
        starts = [(cell / "source.yaml").stat().st_mtime for cell in cells]
        ends = [(cell / "measures.json").stat().st_mtime for cell in cells]
        return max(ends) - min(starts)


def launcher_cost(pieces: int) -> float:
    """Return the seconds per command that writes one file."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        commands = probes.commands(probes.report, Path(folder), map(str, range(pieces)))
        came = list(Local(workers=2)(commands, Path(folder)))
        assert [outcome.code for _, outcome in came] == [0] * pieces
        return (time.perf_counter() - started) / pieces


def again(file: Path, out: Path) -> float:
    """Return the seconds of a second `ablate`, which only plans and reports."""
    ablation.ablate(file, [], out, "cpu", None, 2)
    started = time.perf_counter()
    ablation.ablate(file, [], out, "cpu", None, 2)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("rounds", 3), ("cells", 6), ("steps", 300)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "workers.yaml"
        write = partial(FILE.format, base=BASE, store=Path(folder) / "store", seeds=list(range(asked.cells // 2)))
        file.write_text(write(steps=2))
        few = again(file, Path(folder) / "few")
        file.write_text(write(steps=asked.steps))
        one, two = [], []
        for _ in range(asked.rounds):
            one.append(timed(file, 1))
            two.append(timed(file, 2))
    ratios = [a / b for a, b in zip(one, two, strict=True)]
    print(json.dumps({
        "cells": asked.cells, "steps": asked.steps,
        "seconds with one worker": [round(s, 1) for s in one],
        "seconds with two": [round(s, 1) for s in two],
        "median ratio": round(statistics.median(ratios), 2),
        "local launcher, seconds an empty piece": round(launcher_cost(200), 4),
        "seconds of a command with nothing to do, a cell": round(few / asked.cells, 2),
    }, indent=1))  # fmt: skip


if __name__ == "__main__":
    main()
