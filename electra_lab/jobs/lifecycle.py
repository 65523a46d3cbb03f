"""The lifecycle of every training: of an experiment, and of each seed of a fine-tuning.

A job begins or continues, trains, saves, keeps the best, and finishes. Its kind assembles it.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from electra_lab.config.finetune import FinetuningConfig
from electra_lab.config.load import Loaded, dump
from electra_lab.config.schema import ExperimentConfig
from electra_lab.jobs.endings import noted, stopped
from electra_lab.jobs.progress import LivePage, Progress
from electra_lab.jobs.provenance import differences, keep_changes, with_copies
from electra_lab.jobs.saving import Saver
from electra_lab.jobs.track import Trackers, tracking
from electra_lab.parallel.session import is_first, processes
from electra_lab.presentation.console import Console
from electra_lab.presentation.pages import Unfinished
from electra_lab.storage.checkpoint import newest_sound
from electra_lab.storage.provenance import Environment, Provenance
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training.device import keep_freed_memory
from electra_lab.training.loop import Record, Training, splits_at, train
from registry import Metric, Plugin, Vocabulary
from registry.errors import (
    CheckpointError,
    ConfigError,
    DivergedError,
    OutOfMemoryError,
    Preempted,
    Reported,
    Stopped,
    command,
    is_shortage,
)

STOP, TIME_IS_UP = 100, 1000  # messages between ranks: 1 for a checkpoint, STOP + a signal, or TIME_IS_UP


@dataclass(frozen=True)
class Job(Training):
    """A training with its run directory.

    metrics     of its records, by name
    best        the metric whose best checkpoint is kept, if any
    milestones  steps whose checkpoints are kept
    label       the name of the run in trackers
    resume      the folder to call `electra-lab resume` with
    until       when to stop, by time.monotonic
    show        is given every record with values before it is written
    page        writes report.html while the job lives
    """

    loaded: Loaded[Any]
    directory: RunDirectory
    console: Console
    metrics: Mapping[str, Metric]
    label: str
    resume: Path
    show: Callable[[Record], None]
    best: str | None = None
    milestones: Collection[int] = ()
    until: float = math.inf
    page: Callable[[Unfinished], object] | None = None

    @property
    def config(self) -> ExperimentConfig | FinetuningConfig:
        config: ExperimentConfig | FinetuningConfig = self.loaded.config
        return config


def begin(
    directory: RunDirectory,
    loaded: Loaded[Any],
    began: Provenance,
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    plugins: Iterable[Plugin] = (),
) -> None:
    """Write the first files of a run directory. provenance.json comes last: without it, the run has not begun."""
    directory.write("config.yaml", dump(with_copies(loaded, directory.path, began.plugins)))
    for code, plugin in zip(began.plugins, plugins, strict=False):
        directory.keep_plugin(code, plugin.source)
    directory.keep_tokens(tokenizer, vocabulary.counts, began.id)
    directory.write_json("provenance.json", began.model_dump(mode="json"))


def say_differences(before: Environment, now: Environment, say: Callable[[str], None]) -> None:
    """Say why the numbers of a resumed run may differ from those of an uninterrupted one."""
    if different := differences(before, now):
        say(f"note: the resumed run is not bit-exact, because of {', '.join(different)}")


def continued(job: Job, **facts: Any) -> bool:
    """Truncate the history of a restored run to its step; returns True if that step has been evaluated already.

    All ranks call it, rank 0 writes. `facts` are the keys of provenance.json that follow from the config.
    """
    directory, step, world = job.directory, job.run.step, job.run.learner.world

    def commit() -> str:
        keep_changes(directory, job.loaded, step, job.console.say, **facts)
        directory.mend(job.console.say)
        there = {record["split"] for record in directory.records() if record["step"] == step}
        evaluated = there.issuperset(splits_at(step, job.settings, tested="test" in job.held_out))
        directory.truncate(step, evaluated=evaluated)
        return str(evaluated)

    world.wait()  # until all ranks have read the files that change now
    return world.once(commit) == "True"


def train_to_the_end(job: Job, *, evaluated: bool) -> Saver:
    """Train from the current step to the last one. Raises Interrupted or Preempted if it is stopped before.

    evaluated  False if the evaluations of the current step are missing
    """
    config, step, first = job.config, job.run.step, job.run.learner.world.first
    saver = Saver(job)
    if step == 0 and job.milestones:
        saver.save()
    tracked: AbstractContextManager[Trackers | None] = nullcontext()
    if first and config.trackers:
        tracked = tracking(config, job.directory, job.console.say, name=job.label, step=step)
    page = LivePage(job.page if first else None, job.console.say)
    rows = {split: len(batches) for split, batches in job.held_out.items()}
    progress = Progress(job.console, job.settings, rows)
    with tracked as trackers, page, progress.shown(step, evaluated=evaluated):
        consume_records(train(job, evaluated=evaluated), job, saver, trackers, progress, page)
    return saver


def consume_records(
    records: Iterable[Record], job: Job, saver: Saver, trackers: Trackers | None, progress: Progress, page: LivePage
) -> None:
    """Consume the records of a training up to its last step.

    A checkpoint is saved when it is due, after the last step, and before a signal, the time limit or an error ends the
    run. With several processes rank 0 writes, and a signal to one of them stops all after one more step.
    """
    run, world, console = job.run, job.run.learner.world, job.console

    def save() -> None:
        with progress.saving():
            saver.save()

    with saver, noted(console.say, alone=world.size == 1) as arrived:
        try:
            for record in records:
                progress(record)
                # A line of the log, or an evaluation.
                if record.values:
                    if world.first:
                        _write(record, job, trackers)
                        page()
                    if record.values["split"] == "validation" and saver.is_best(record.values):
                        save()
                    continue
                # A step, or a pause in an evaluation.
                due = not record.evaluating and (record.step == job.settings.steps or saver.due(record.step))
                agreed = world.agreed(_wish(arrived.number, job.until, saver if world.first else None))
                if due or agreed:
                    save()
                if agreed >= STOP:
                    saver.wait()
                    world.wait()  # when one process ends, launchers soon kill the others
                    raise _end(agreed, run.step, job.resume)
        except DivergedError as error:
            if world.first:
                with suppress(CheckpointError):  # the first error matters
                    job.directory.note_divergence(str(error))
            raise
        except (Stopped, CheckpointError):
            raise
        except Exception:
            saver.save_before_the_end(console.say)
            raise


def _write(record: Record, job: Job, trackers: Trackers | None) -> None:
    job.show(record)
    job.directory.append(record.values)
    job.console.record(record.values, job.metrics)
    if trackers:
        trackers(record.values)


def _wish(signal: int, until: float, saver: Saver | None) -> int:
    """Return the request of this process after a step, for `World.agreed`; `saver` knows if a checkpoint is due."""
    if time.monotonic() > until:
        return TIME_IS_UP
    return STOP + signal if signal else int(saver is not None and saver.overdue())


def _end(agreed: int, step: int, resume: Path) -> Stopped:
    saved = f"stopped and saved after step {step}. Resume with: {command('resume', resume)}"
    return Preempted(f"run.max_minutes is up: {saved}") if agreed == TIME_IS_UP else stopped(agreed - STOP, saved)


def refuse_several_processes() -> None:
    """Raise ConfigError under torchrun and similar launchers, where every process would do the same work."""
    if (number := processes()) == 1:
        return
    if not is_first():
        raise Reported(ConfigError.exit_code)
    raise ConfigError(
        f"WORLD_SIZE is {number}: only `run` and `resume` train in several processes. Start this command without "
        "torchrun; ablations run their cells in parallel by themselves."
    )


@contextmanager
def enough_memory() -> Iterator[None]:
    """Keep freed memory during training, and turn torch's out-of-memory errors into OutOfMemoryError."""
    keep_freed_memory()
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_shortage(error):
            raise
        raise OutOfMemoryError(
            f"there is not enough memory ({(str(error).splitlines() or ['no details'])[0]}). Lower "
            "train.micro_batch_size (masks and draws stay the same) or evaluate.batch_size. For a run that has begun: "
            "electra-lab resume RUN_DIR --set train.micro_batch_size=NUMBER. Or make the networks smaller."
        ) from error


def with_cures(error: DivergedError, directory: RunDirectory) -> DivergedError:
    """Add the checkpoint to continue from, and the command that finds the cause."""
    step = None
    with suppress(CheckpointError):  # the first error matters
        step = newest_sound(directory.checkpoints)
    where = "There is no checkpoint." if step is None else f"The newest intact checkpoint is that of step {step:,}."
    return DivergedError(f"{error} {where} To find the cause: {command('replay', directory.path)}")
