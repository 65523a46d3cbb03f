"""The lifecycle of every training: of an experiment, and of each seed of a fine-tuning.

A job begins or continues, trains, saves, keeps the best, and finishes. Its kind assembles it. Meanwhile a person sees
its bar, its phase and the time left on the terminal, and its page.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from electra_lab.config.finetune import FinetuningConfig
from electra_lab.config.load import Loaded, dump
from electra_lab.config.schema import ExperimentConfig
from electra_lab.jobs.endings import noted, stopped
from electra_lab.jobs.provenance import differences, keep_changes, with_copies
from electra_lab.jobs.saving import Saver
from electra_lab.jobs.track import Trackers, tracking
from electra_lab.parallel.session import is_first, processes
from electra_lab.presentation.console import Console
from electra_lab.presentation.pages import Unfinished
from electra_lab.storage.checkpoint import newest_sound
from electra_lab.storage.files import reason
from electra_lab.storage.finetuning_folder import FinetuningFolder
from electra_lab.storage.provenance import Code, Environment, Provenance
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training.device import keep_freed_memory
from electra_lab.training.loop import Record, Settings, Training, splits_at, train
from registry import Metric, Plugin, Split, Vocabulary
from registry.errors import (
    CheckpointError,
    ConfigError,
    DivergedError,
    LabError,
    OutOfMemoryError,
    Preempted,
    Reported,
    Stopped,
    command,
    is_shortage,
)

Judge = Callable[[Mapping[str, Any]], None]
Page = Callable[[], None]  # writes the page of a job again, if it is due
NOTHING_SAVED = "Nothing was saved. Start again with the same command."
STOP, TIME_IS_UP = 100, 1000  # messages between ranks: 1 for a checkpoint, STOP + a signal, or TIME_IS_UP


class Pruned(Stopped):
    """A search has ended a run that does worse than others; it is not resumed."""


@dataclass(frozen=True)
class Job(Training):
    """A training with its run directory.

    metrics     metrics of its records, by name
    best        metric whose best checkpoint is kept, if any
    milestones  steps whose checkpoints are kept
    label       name of the run in trackers
    resume      folder to call `electra-lab resume` with
    until       time limit, by time.monotonic
    show        called with each record with values before it is written
    judge       called with each record of validation text before the end; it may raise Pruned
    profile     passes on the records, and may measure the steps between them
    page        writer of report.html while the job lives
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
    judge: Judge | None = None
    profile: Callable[[Iterable[Record]], Iterable[Record]] = iter

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
    write_config(directory, "config.yaml", loaded, began.plugins, plugins)
    directory.keep_tokens(tokenizer, vocabulary.counts, began.id)
    directory.write_json("provenance.json", began.model_dump(mode="json"))


def write_config(
    folder: RunDirectory | FinetuningFolder,
    name: str,
    loaded: Loaded[Any],
    codes: Sequence[Code],
    plugins: Iterable[Plugin],
) -> None:
    """Write the complete config of a folder, after the copies of plug-ins that it imports."""
    for code, plugin in zip(codes, plugins, strict=False):
        folder.keep_plugin(code, plugin.source)
    folder.write(name, dump(with_copies(loaded, folder.path, codes)))


def how_to_resume(path: Path) -> str:
    return f"Resume with: {command('resume', path)}"


def say_differences(before: Environment, now: Environment, say: Callable[[str], None]) -> None:
    """Say why the numbers of a resumed or replayed run may differ from those of an uninterrupted one."""
    if different := differences(before, now):
        say(f"note: numbers are not bit-exact, because of {', '.join(different)}")


def continued(job: Job, restored: bool | None, **facts: Any) -> bool:
    """Truncate the history of a job to its step; returns True if that step has been evaluated already.

    All ranks call it, rank 0 writes.

    restored  True if the job was restored from a checkpoint, False if it had none, None for a new job
    facts     keys of provenance.json that follow from the config
    """
    directory, step, world, say = job.directory, job.run.step, job.run.learner.world, job.console.say

    def commit() -> str:
        keep_changes(directory, job.loaded, step, say, **facts)
        directory.mend(say)
        there = {record["split"] for record in directory.records() if record["step"] == step}
        evaluated = there.issuperset(splits_at(step, job.settings, tested="test" in job.held_out))
        directory.truncate(step, evaluated=evaluated)
        return str(evaluated)

    world.wait()  # until all ranks have read the files that change now
    evaluated = world.once(commit) == "True"
    if restored is None:
        return evaluated
    if world.first and step >= job.settings.log_every and not directory.records():
        say(f"note: {directory.metrics}: the records up to step {step} are gone")
    if not restored:
        say("there is no checkpoint yet; starting again from the beginning")
    elif step >= job.settings.steps and evaluated:
        say("the run is already complete")
    else:
        say(f"resuming after step {step}")
    return evaluated


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
    live = live_page(job.page if first else None, job.console.say)
    rows = {split: len(batches) for split, batches in job.held_out.items()}
    progress = Progress(job.console, job.settings, rows)
    with tracked as trackers, live as page, progress.shown(step, evaluated=evaluated):
        consume_records(job.profile(train(job, evaluated=evaluated)), job, saver, trackers, progress, page)
    return saver


def consume_records(
    records: Iterable[Record], job: Job, saver: Saver, trackers: Trackers | None, progress: Progress, page: Page
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
                    if job.judge and record.values["split"] == "validation" and record.step < job.settings.steps:
                        job.judge(record.values)
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
    saved = f"stopped and saved after step {step}. {how_to_resume(resume)}"
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


PAGE_SHARE = 50  # a page is written again once this multiple of the time that it took has passed: 2% of the time


class Progress:
    """Moves the bar of a training, and names its phases.

    rows  number of rows of each split that is evaluated
    """

    def __init__(self, console: Console, settings: Settings, rows: Mapping[str, int]) -> None:
        self._console, self._settings, self._rows = console, settings, rows
        self._waiting: list[Split] = []  # splits to evaluate before the next step
        self._done = 0  # rows of the test

    @contextmanager
    def shown(self, step: int, *, evaluated: bool) -> Iterator[None]:
        """Show the bar."""
        with self._console.progress(step, self._settings.steps):
            if not evaluated:
                self._begin_evaluations(step)
            yield

    def __call__(self, record: Record) -> None:
        """Note a record: the end of a step, a batch of an evaluation, or the end of one."""
        if record.evaluating:
            if self._waiting == ["test"]:
                self._done = min(self._done + self._settings.evaluate_batch_size, self._rows["test"])
                self._console.advance(self._done)
        elif record.evaluation:
            self._waiting = self._waiting[1:]
            if self._waiting or record.step < self._settings.steps:
                self._begin_phase()
        elif not record.values:
            self._console.advance(record.step)
            self._begin_evaluations(record.step)

    def _begin_evaluations(self, step: int) -> None:
        self._waiting = splits_at(step, self._settings, tested="test" in self._rows)
        if self._waiting:
            self._begin_phase()

    @property
    def _phase(self) -> str:
        return "testing" if self._waiting == ["test"] else "evaluating" if self._waiting else "training"

    def _begin_phase(self) -> None:
        self._console.phase(self._phase, self._rows["test"] if self._phase == "testing" else None, "rows")

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Name the phase while a checkpoint is written."""
        self._console.phase("saving")
        try:
            yield
        finally:
            self._console.phase(self._phase)


@contextmanager
def live_page(write: Callable[[Unfinished], object] | None, say: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Yield a function that writes the page of a job again, if it is due: in at most 2% of the time.

    The last page says which error ended the job. A process that is ended at once, as by a second Ctrl-C, writes none.

    write  writer of the page of an unfinished job; None for a process that writes no pages
    say    called once if that fails
    """
    due, last, failed = 0.0, time.monotonic(), False

    def attempt(how: Unfinished) -> None:
        nonlocal due, failed
        began = time.monotonic()
        try:
            if write:
                write(how)
        except Exception as error:  # a full disk, damaged records: the job goes on without a page
            if not failed:
                say(f"note: report.html could not be written while the job runs ({reason(error)})")
            failed = True
        due = time.monotonic() + PAGE_SHARE * (time.monotonic() - began)

    def page() -> None:
        nonlocal last
        if (now := time.monotonic()) >= due:
            pause, last = now - last, now
            attempt(Unfinished("running", pause))

    try:
        yield page
    except Stopped as error:
        attempt(Unfinished(str(error) if isinstance(error, Pruned) else "interrupted: it can be resumed"))
        raise
    except Exception as error:
        said = str(error) if isinstance(error, LabError) else "an internal error"
        attempt(Unfinished(f"ended by an error: {said}"))
        raise
