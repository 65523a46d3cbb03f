"""Consume the records of a training: write and print them, save checkpoints, stop when asked to."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from electra_lab.jobs.saving import Saver, save_before_the_end
from electra_lab.jobs.signals import noted, stopped
from electra_lab.presentation.console import Console
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training.divergence import Refused
from electra_lab.training.loop import Record, Run, Settings, splits_at
from registry import Metric
from registry.errors import CheckpointError, DivergedError, Preempted, Stopped, command

STOP, TIME_IS_UP = 100, 1000  # what ranks tell each other: 1 for a checkpoint, STOP + a signal, or TIME_IS_UP


def follow(
    records: Iterable[Record],
    directory: RunDirectory,
    console: Console,
    saver: Saver,
    run: Run,
    *,
    steps: int,
    metrics: Mapping[str, Metric],
    show: Callable[[Record], None],
    track: Callable[[Mapping[str, Any]], None],
    resume: Path | None = None,
    until: float = math.inf,
    back: Callable[[Refused], None] | None = None,
) -> None:
    """Consume the records of a training up to its last step. Raises Interrupted or Preempted if it is to stop before.

    A checkpoint is saved when it is due, after the last step, before the end that a signal or the clock asks for, and
    before an error ends the run. With several processes rank 0 writes, and a signal to one of them stops all after one
    more step.

    saver    writes the checkpoints of `run`
    show     is given every record with values first
    track    is given its values last
    resume   what `electra-lab resume` is to be called with; by default the directory
    until    when to stop, by time.monotonic
    back     puts the run back to a checkpoint when training must not go on as it is, or raises DivergedError
    """

    def save() -> None:
        try:
            saver.save()
        except Refused as refused:
            if back is None:
                raise
            back(refused)

    world, cure = run.learner.world, f"Resume with: {command('resume', resume or directory.path)}"
    with saver, noted(console.say, alone=world.size == 1) as arrived, console.progress(run.step, steps):
        try:
            for record in records:
                if record.values:
                    if world.first:
                        show(record)
                        directory.append(record.values)
                        console.record(record.values, metrics)
                        track(record.values)
                    if record.values["split"] == "validation" and saver.best(record.values):
                        save()
                    continue
                due = False
                if record.refused:
                    if back is None:
                        raise record.refused
                    back(record.refused)
                elif not record.evaluating:
                    console.advance(record.step)
                    due = record.step == steps or saver.due(record.step)
                agreed = world.agreed(_wish(arrived.number, until, saver if world.first else None))
                if due or agreed:
                    save()
                if agreed >= STOP:
                    saver.wait()
                    world.wait()  # a launcher that sees one process end soon kills the others
                    if agreed == TIME_IS_UP:
                        raise Preempted(f"run.max_minutes is up: stopped and saved after step {run.step}. {cure}")
                    raise stopped(agreed - STOP, f"stopped and saved after step {run.step}. {cure}")
        except (Stopped, CheckpointError, DivergedError):
            raise
        except Exception:
            save_before_the_end(saver, run, console.say)
            raise


def is_evaluated(directory: RunDirectory, step: int, settings: Settings, *, tested: bool) -> bool:
    """Return True if metrics.jsonl has all evaluations that are due after `step`; see splits_at."""
    there = {record["split"] for record in directory.records() if record["step"] == step}
    return there.issuperset(splits_at(step, settings, tested=tested))


def _wish(signal: int, until: float, saver: Saver | None) -> int:
    """Return what this process would do after a step; `saver` looks at the clock."""
    if time.monotonic() > until:
        return TIME_IS_UP
    return STOP + signal if signal else int(saver is not None and saver.overdue())
