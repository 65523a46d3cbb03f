"""Run, resume and reopen experiments."""

import hashlib
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import zip_longest
from pathlib import Path

import torch

from electra_lab.analysis.records import training_seconds
from electra_lab.assembly.build import sketch
from electra_lab.assembly.experiment import Experiment, absent_data, assemble, check, open_data
from electra_lab.config.load import Loaded, Source, dump, load, text_of
from electra_lab.data.store import Store, load_store
from electra_lab.jobs.consume_records import follow, is_evaluated
from electra_lab.jobs.divergence import RollBack, telling
from electra_lab.jobs.errors import exit_code
from electra_lab.jobs.pretraining.changes import (
    changes,
    content,
    keep_changes,
    other_length,
    refuse_other_data,
    refuse_others,
)
from electra_lab.jobs.progress import Phases
from electra_lab.jobs.provenance import device_name, differences, environment_of, length, provenance
from electra_lab.jobs.saving import Saver
from electra_lab.jobs.signals import ending
from electra_lab.jobs.track import tracking
from electra_lab.parallel.session import is_first, processes, session
from electra_lab.parallel.world import ALONE, World
from electra_lab.planning.forecast import forecast
from electra_lab.planning.memory import is_shortage
from electra_lab.presentation import run_summary as summary
from electra_lab.presentation.console import Console
from electra_lab.presentation.run_page import write_report
from electra_lab.storage.checkpoint import checkpoints, load_newest
from electra_lab.storage.provenance import Environment, Provenance, described
from electra_lab.storage.run_directory import RunDirectory, is_run, refuse_to_hold, refuse_used
from electra_lab.training.allocator import keep_freed_memory
from electra_lab.training.device import choose_device
from electra_lab.training.loop import Record, train
from electra_lab.training.step import backward
from registry.errors import CheckpointError, ConfigError, DataError, OutOfMemoryError, Reported, command


def run(file: Source, overrides: list[str], out: Path | None, device: str, shared: Path | None = None) -> Path:
    """Train an experiment; returns the run directory.

    shared  the folder of what is decided once for experiments that are compared

    Raises LabError. Nothing is written before data and networks have been checked.
    """
    began = time.monotonic()
    begun: list[RunDirectory] = []

    def cure() -> str:
        started = begun and is_run(begun[0].path)
        return _continue(begun[0].path) if started else "Nothing was saved. Start again by the same command."

    with session(device, exit_code) as world, ending(cure):
        if world.first:
            refuse_used(out)
        loaded = load(file, overrides)
        refuse_to_hold(out, loaded.config.data.store)
        source = text_of(file)  # now: it may be edited while the corpus is read
        if absent := check(loaded):
            raise absent
        target, console = choose_device(device), Console(quiet=not world.first)
        store = _shared_data(loaded, console, world)
        with enough_memory():
            experiment = assemble(loaded, store, target, world=world, shared=shared)
            path = world.once(lambda: str(RunDirectory.create(out, loaded.config.name).path))
            directory = RunDirectory(Path(path))
            begun.append(directory)
            with directory.locked() if world.first else nullcontext():
                if world.first:
                    refuse_used(directory.path)  # another process may have begun in it since
                    _begin(directory, loaded, source, experiment)
                _train(directory, loaded, experiment, console, began=began)
        return directory.path


def _continue(path: Path) -> str:
    return f"Resume with: {command('resume', path)}"


def _shared_data(loaded: Loaded, console: Console, world: World, directory: RunDirectory | None = None) -> Store:
    """Open the token store, which rank 0 builds if needed; that of a run that is resumed must be the same."""
    if world.first:
        with Phases(console) as progress:
            if directory:
                refuse_other_data(loaded, directory)
            store = open_data(loaded, console.say, progress)
        world.once(lambda: str(store.folder))
        return store
    return load_store(Path(world.once(str)))


def _begin(directory: RunDirectory, loaded: Loaded, source: str, experiment: Experiment) -> None:
    """Write what a run directory holds from the start, provenance.json last: before it, nothing has begun."""
    config = dump(loaded.config)
    directory.write("source.yaml", source)
    directory.write("config.yaml", config)
    began = provenance(loaded, experiment, config)
    for code, plugin in zip(began.plugins, loaded.plugins, strict=True):
        directory.keep_plugin(code, plugin.source)
    directory.keep_tokens(experiment.store.tokenizer, experiment.vocabulary.counts)
    directory.write_json("provenance.json", began.model_dump(mode="json"))


def dry_run(file: Path, overrides: list[str], out: Path | None, device: str) -> str:
    """Describe what `run` would do and need. Reads no corpus, writes nothing. Raises LabError."""
    refuse_used(out)
    loaded = load(file, overrides)
    refuse_to_hold(out, loaded.config.data.store)
    built = sketch(loaded)
    if absent := absent_data(loaded, built):
        Console().say(f"note: {absent} A run would stop there.")
    # A plan may be for another machine, so a device that is not here is not a mistake.
    target = torch.device(device) if device == "cuda" else choose_device(device)
    return summary.forecast(loaded, forecast(loaded, built, target), target)


def resume(path: Path, device: str, overrides: Sequence[str] = (), shared: Path | None = None) -> Path:
    """Continue a run from its newest valid checkpoint, with changed values if they may change. Raises LabError.

    shared  as for `run`: where a run that goes on on another device finds what was decided there
    """
    began = time.monotonic()
    with session(device, exit_code) as world, ending(lambda: _continue(path)):
        directory = RunDirectory.open(path)
        with directory.locked() if world.first else nullcontext(), enough_memory():
            if world.first:
                directory.refuse_lost_checkpoints()
            loaded, experiment, console, state = _reopened(directory, device, world, overrides, shared)
            run, settings = experiment.run, experiment.settings
            world.wait()  # nobody reads checkpoints any longer
            if world.first:
                before = directory.provenance().steps
                facts = length(experiment) | _rows_now(directory, experiment)
                keep_changes(directory, loaded, run.step, console.say, **facts)
                if before != settings.steps and run.step:
                    console.say(other_length(settings, before, run.step))
                directory.mend(console.say)
                if run.step >= settings.log_every and not directory.records():
                    console.say(f"note: {directory.metrics}: the records up to step {run.step} are gone")
            evaluated = world.once(lambda: str(is_evaluated(directory, run.step, settings, tested=True))) == "True"
            if world.first:
                directory.truncate(run.step, evaluated=evaluated)
                directory.keep_tokens(experiment.store.tokenizer, experiment.vocabulary.counts)  # older runs lack them
            if not state:
                console.say("there is no checkpoint yet; starting again from the beginning")
            elif run.step >= settings.steps and evaluated:
                console.say("the run is already complete")
            else:
                console.say(f"resuming after step {run.step}")
            _train(directory, loaded, experiment, console, began=began, evaluated=evaluated)
    return path


def reopen(path: Path, device: str) -> tuple[Loaded, Experiment]:
    """Open a finished run with its final weights, to look at it. Raises LabError."""
    directory = RunDirectory.open(path)
    with enough_memory():
        loaded, experiment, _, state = _reopened(directory, device)
    if not state or experiment.run.step < experiment.settings.steps:
        raise CheckpointError(
            f"{path}: its final checkpoint is missing or damaged. Recreate it: {command('resume', path)}"
        )
    return loaded, experiment


def _reopened(
    directory: RunDirectory,
    device: str,
    world: World = ALONE,
    overrides: Sequence[str] = (),
    shared: Path | None = None,
) -> tuple[Loaded, Experiment, Console, bool]:
    """Assemble the experiment of a run directory, and load its newest checkpoint if there is one."""
    path, began = directory.path, directory.provenance()
    directory.refuse_other_format(began)
    loaded = _config_of(directory, began, overrides)
    target, console = choose_device(device), Console(quiet=not world.first)
    store = _shared_data(loaded, console, world, directory)
    restored = bool(checkpoints(directory.checkpoints))
    decided = _decided(began, loaded, target)
    experiment = assemble(loaded, store, target, restored=restored, world=world, began=decided, shared=shared)
    if experiment.earlier and experiment.earlier != began.earlier_runs:
        raise DataError(
            f"{path}: the earlier run that it starts from has another checkpoint now ({experiment.earlier}, was "
            f"{began.earlier_runs}), and this run has none of its own yet. Start a new run."
        )
    if experiment.init and experiment.init != began.init:
        raise DataError(
            f"{path}: the weights that `init` names have changed since the run began, and it has no checkpoint yet. "
            "Start a new run."
        )
    if different := differences(began.environment, environment_of(experiment)):
        console.say(f"note: the resumed run is not bit-exact, because of {', '.join(different)}")
    run = experiment.run
    state = load_newest(directory.checkpoints, run.learner.objective, run.optimizer, console.say)
    if state:
        run.restore(state)
    if run.step > experiment.settings.steps:
        reason = (
            f"the run has done {run.step:,} steps already, more than the {experiment.settings.steps:,} it would have"
        )
        raise ConfigError(f"{path}: {reason}.")
    return loaded, experiment, console, bool(state)


def _decided(began: Provenance, loaded: Loaded, device: torch.device) -> Environment | None:
    """Return what was decided when a run began, which stands on the same device; `auto` decides anew if it is new."""
    if began.environment.device != device_name(device):
        return None
    before = began.config.get("train", {}).get("micro_batch_size") if began.config else "auto"
    new = loaded.config.train.micro_batch_size == "auto" != before
    return began.environment.model_copy(update={"micro_batch_size": None}) if new else began.environment


def _rows_now(directory: RunDirectory, experiment: Experiment) -> dict[str, Environment]:
    """Return the environment with the micro-batch of now, for provenance.json; nothing if the run began elsewhere."""
    before, now = directory.provenance().environment, environment_of(experiment)
    if (before.device, before.processes) != (now.device, now.processes):
        return {}  # how many rows go at a time here says nothing about there
    return {"environment": before.model_copy(update={"micro_batch_size": now.micro_batch_size})}


def _config_of(directory: RunDirectory, began: Provenance, overrides: Sequence[str]) -> Loaded:
    """Read a run's config, with overrides. Raises ConfigError for changes that must not be."""
    path, config = directory.path, directory.path / "config.yaml"
    known = {began.config_sha256, *(change.config_sha256 for change in began.changes)}
    if hashlib.sha256(config.read_bytes()).hexdigest() not in known:
        found = described(changes(began.config, content(load(config)))) if began.config else ""
        raise ConfigError(
            f"{config}: was changed since the run began{f' ({found})' if found else ''}. Undo that. What may change is "
            f"given as: {command('resume', path, '--set', 'KEY=VALUE')}."
        )
    loaded = load(config, overrides)
    if overrides:
        refuse_others(changes(began.config or content(load(config)), content(loaded)), path)
    for plugin, then in zip_longest(loaded.plugins, began.plugins):
        if plugin is None or then is None or (plugin.sha256, plugin.package) != (then.sha256, then.package):
            name = f"{plugin.file} ({plugin.package})" if plugin and plugin.package else getattr(plugin, "file", path)
            raise ConfigError(
                f"{name}: the plug-ins changed since the run began; {path / 'plugins'} has the originals."
            )
    return loaded


def _train(
    directory: RunDirectory,
    loaded: Loaded,
    experiment: Experiment,
    console: Console,
    *,
    began: float,
    evaluated: bool = True,
) -> None:
    """Train to the end. `began`: when the command did, by time.monotonic."""
    run, settings, config = experiment.run, experiment.settings, loaded.config
    world, metrics = run.learner.world, experiment.accumulate(()).metrics
    console.say(summary.opening(loaded, experiment, directory.path))
    if experiment.choices.compile != "off":
        console.say(f"compiled in {warm_up(experiment):.0f} s")
    saving, best = config.checkpoint, config.checkpoint.best
    saver = Saver(
        directory,
        run,
        settings,
        every=saving.every,
        keep=saving.keep,
        minutes=saving.minutes,
        milestones=config.milestones,
        best=(best, metrics[best]) if best else None,
        asynchronous=saving.asynchronous,
    )
    if run.step == 0 and config.milestones:
        saver.save()

    def show(record: Record) -> None:
        if record.evaluation and record.evaluation.examples:
            directory.write_json("examples.json", summary.readable(record.evaluation.examples, experiment))

    records = train(
        run,
        settings,
        experiment.train,
        {"validation": experiment.validation, "test": experiment.test},
        experiment.accumulate,
        experiment.device,
        evaluated=evaluated,
    )
    name = f"{config.name}-{directory.path.resolve().name}"
    tracked = tracking(config, directory, console.say, name=name, step=run.step)
    minutes = config.run.max_minutes
    with telling(directory), tracked if world.first else nullcontext() as trackers:
        rewind = trackers.rewind if trackers else lambda _: None
        follow(
            records,
            directory,
            console,
            saver,
            run,
            steps=settings.steps,
            metrics=metrics,
            show=show,
            track=trackers or (lambda _: None),
            back=RollBack(directory, run, settings, saver, console.say, rewind),
            until=math.inf if minutes is None else began + 60 * minutes,
        )
    if world.first:
        report = write_report(directory)
        console.say(summary.closing(directory, report, training_seconds(directory.records())))


def warm_up(experiment: Experiment) -> float:
    """Compile what a step needs, by the forward and backward pass of one that is not taken; returns its seconds."""
    run, settings, device = experiment.run, experiment.settings, experiment.device
    learner, began = run.learner, time.perf_counter()
    part = run.learner.world.part(settings.batch_size)
    batch = experiment.train.training_batch(settings.seed, run.step, settings.batch_size, device, part=part)
    learner.objective.train()
    learner.at_step(settings.seed, run.step)
    backward(learner.losses(batch[: settings.micro_batch_size], settings.seed, run.step, settings.precision).terms)
    run.optimizer.zero_grad(set_to_none=True)
    return time.perf_counter() - began


def refuse_several_processes() -> None:
    """Raise ConfigError under torchrun and the like, for what would be done once by every process."""
    if (number := processes()) == 1:
        return
    if not is_first():
        raise Reported(ConfigError.exit_code)
    raise ConfigError(
        f"WORLD_SIZE is {number}: only `run` and `resume` train in several processes. Start this command without "
        "torchrun; ablations and fine-tuning suites run their parts in parallel by themselves."
    )


@contextmanager
def enough_memory() -> Iterator[None]:
    """Train with memory that is kept, and turn torch's complaints about it into OutOfMemoryError."""
    keep_freed_memory()
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_shortage(error):
            raise
        raise OutOfMemoryError(
            f"there is not enough memory ({(str(error).splitlines() or ['no details'])[0]}). Lower "
            "train.micro_batch_size, which changes no mask and no draw, or evaluate.batch_size; a run that has begun "
            "takes them by: electra-lab resume RUN_DIR --set train.micro_batch_size=NUMBER. Or make the networks "
            "smaller."
        ) from error
