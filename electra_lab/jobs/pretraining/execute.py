"""Run, resume and reopen experiments."""

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from electra_lab.analysis.records import training_seconds
from electra_lab.assembly.budget import Scale
from electra_lab.assembly.build import sketch
from electra_lab.assembly.data import open_data, prepared
from electra_lab.assembly.experiment import Experiment, absent_data, assemble, check
from electra_lab.assembly.needs import forecast, trial
from electra_lab.config.load import Loaded, Source, load, text_of
from electra_lab.data.store import Store, load_store
from electra_lab.jobs.endings import ending, exit_code
from electra_lab.jobs.lifecycle import (
    NOTHING_SAVED,
    Job,
    Judge,
    begin,
    continued,
    enough_memory,
    how_to_resume,
    say_differences,
    train_to_the_end,
    with_cures,
)
from electra_lab.jobs.pretraining.facts import opening, planned, readable
from electra_lab.jobs.pretraining.profile import WARM_UP, Profiler
from electra_lab.jobs.provenance import (
    checked_recipe,
    codes_of,
    device_name,
    environment_of,
    length_of,
    other_length,
    provenance,
    refuse_changes,
    refuse_other_plugins,
)
from electra_lab.jobs.saving import restore
from electra_lab.parallel.session import session
from electra_lab.presentation.console import Console, Phases
from electra_lab.presentation.profile import shown
from electra_lab.presentation.run_page import closing, write_report
from electra_lab.storage.checkpoint import checkpoints
from electra_lab.storage.provenance import Environment, Provenance, weights_of
from electra_lab.storage.run_directory import RunDirectory, is_run, refuse_to_hold, refuse_used
from electra_lab.training.device import choose_device, planned_device
from electra_lab.training.graph import record_steps
from electra_lab.training.loop import Record, batch_of
from electra_lab.training.step import backward
from registry.contracts.objective import ALONE, World
from registry.errors import CheckpointError, ConfigError, DataError, DivergedError, command


def run(
    file: Source,
    overrides: list[str],
    out: Path | None,
    device: str,
    scale: Scale | None = None,
    id: str | None = None,
    judge: Judge | None = None,
    profile: int | None = None,
) -> Path:
    """Train an experiment; returns the run directory.

    scale  numbers that the rules of `auto` use, for experiments that are compared; by default the experiment's
    id     id of the run, by default a new one
    judge  may end it early, after an evaluation
    profile  number of steps whose time is recorded by part

    Raises LabError. Nothing is written before data and networks have been checked.
    """
    started = time.monotonic()
    begun: list[RunDirectory] = []

    def cure() -> str:
        if begun and is_run(begun[0].path):
            return how_to_resume(begun[0].path)
        return NOTHING_SAVED

    with session(device, exit_code) as world, ending(cure):
        # Validate.
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
            experiment = assemble(loaded, store, target, world=world, scale=scale)
            if profile and profile + WARM_UP > experiment.settings.steps:
                raise ConfigError(f"--profile {profile}: needs {profile + WARM_UP} steps; the run has too few.")
            # Begin.
            path = world.once(lambda: str(RunDirectory.create(out, loaded.config.name).path))
            directory = RunDirectory(Path(path))
            begun.append(directory)
            with directory.locked() if world.first else nullcontext():
                if world.first:
                    refuse_used(directory.path)  # another process may have begun in it since
                    directory.write("source.yaml", source)
                    began = provenance(loaded, experiment, directory.path, id)
                    begin(directory, loaded, began, store.tokenizer, experiment.vocabulary, loaded.plugins)
                world.wait()  # the other ranks read the files of rank 0
                _train(directory, loaded, experiment, console, started=started, judge=judge, profile=profile)
        return directory.path


def _shared_data(loaded: Loaded, console: Console, world: World, resumed: RunDirectory | None = None) -> Store:
    """Open the token store, which rank 0 builds if needed. A resumed run must have the same store as before."""
    if not world.first:
        return load_store(Path(world.once(str)))
    with Phases(console) as progress:
        loaded, recipe = checked_recipe(loaded, resumed) if resumed else (loaded, None)
        store = open_data(loaded, console.say, progress, recipe=recipe)
    world.once(lambda: str(store.folder))
    return store


def report(path: Path) -> Path:
    """Write report.html of a run again. Raises LabError."""
    return write_report(RunDirectory.open(path))


def dry_run(file: Path, overrides: list[str], out: Path | None, device: str, *, tries: bool = True) -> str:
    """Describe the needs of `run`. Tokenizes nothing, writes nothing. Raises LabError.

    tries  estimate the time from some of its steps
    """
    refuse_used(out)
    loaded = load(file, overrides)
    refuse_to_hold(out, loaded.config.data.store)
    built = sketch(loaded)
    if absent := absent_data(loaded, built):
        Console().say(f"note: {absent} A run would stop there.")
    target = planned_device(device)
    store = None if absent else prepared(loaded)
    needs = forecast(loaded, target, store)
    with enough_memory():
        time = trial(loaded, needs, target, store) if tries else "not tried (--no-trial)"
    return planned(loaded, needs, target, time)


def resume(
    path: Path,
    device: str,
    overrides: Sequence[str] = (),
    scale: Scale | None = None,
    judge: Judge | None = None,
) -> Path:
    """Continue a run from its newest valid checkpoint, with changed values if they may change. Raises LabError.

    scale  as for `run`, for a run that is resumed on another device
    judge  as for `run`
    """
    started = time.monotonic()
    with session(device, exit_code) as world, ending(lambda: how_to_resume(path)):
        directory = RunDirectory.open(path)
        with directory.locked() if world.first else nullcontext(), enough_memory():
            if world.first:
                directory.refuse_lost_checkpoints()
            console = Console(quiet=not world.first)
            loaded, experiment, restored = _reopened(directory, device, console, world, overrides, scale)
            _train(directory, loaded, experiment, console, started=started, restored=restored, judge=judge)
    return path


def reopen(path: Path, device: str) -> tuple[Loaded, Experiment]:
    """Open a finished run with its final weights, to look at it. Raises LabError."""
    directory = RunDirectory.open(path)
    with enough_memory():
        loaded, experiment, restored = _reopened(directory, device, Console())
    if not restored or experiment.run.step < experiment.settings.steps:
        raise CheckpointError(
            f"{path}: its final checkpoint is missing or damaged. Recreate it: {command('resume', path)}"
        )
    return loaded, experiment


def _reopened(
    directory: RunDirectory,
    device: str,
    console: Console,
    world: World = ALONE,
    overrides: Sequence[str] = (),
    scale: Scale | None = None,
) -> tuple[Loaded, Experiment, bool]:
    """Assemble the experiment of a run directory, and restore its newest checkpoint; False if there is none."""
    began, target = directory.provenance(), choose_device(device)
    directory.refuse_other_format(began)
    loaded = _config_of(directory, began, overrides)
    store = _shared_data(loaded, console, world, directory)
    return loaded, *reassembled(directory, loaded, store, target, console, world, scale)


def reassembled(
    directory: RunDirectory,
    loaded: Loaded,
    store: Store,
    device: torch.device,
    console: Console,
    world: World = ALONE,
    scale: Scale | None = None,
) -> tuple[Experiment, bool]:
    """Assemble an experiment that has begun, and restore its newest checkpoint; False if there is none."""
    # Assemble. On the same device, the choices made when the run began still hold.
    began, later = directory.provenance(), bool(checkpoints(directory.checkpoints))
    decided = _decided(began, loaded, device)
    experiment = assemble(loaded, store, device, restored=later, world=world, began=decided, scale=scale)
    _refuse_other_weights(experiment, began, directory.path)
    say_differences(began.environment, environment_of(experiment), console.say)
    # Restore.
    restored, steps = restore(directory, experiment.run, console.say), experiment.settings.steps
    if (done := experiment.run.step) > steps:
        raise ConfigError(f"{directory.path}: the run has already done {done:,} steps, so it cannot end at {steps:,}.")
    return experiment, restored


def _refuse_other_weights(experiment: Experiment, began: Provenance, path: Path) -> None:
    """Raise DataError if a run without a checkpoint would start from other weights than it began with."""
    if experiment.init and weights_of(experiment.init) != weights_of(began.init):
        raise DataError(
            f"{path}: the models that it starts from have changed since the run began, and it has no checkpoint yet. "
            "Start a new run."
        )


def _decided(began: Provenance, loaded: Loaded, device: torch.device) -> Environment | None:
    """Return the choices made when a run began on the same device; a new `auto` is decided again."""
    if began.environment.device != device_name(device):
        return None
    before = began.config["train"].get("micro_batch_size")
    new = loaded.config.train.micro_batch_size == "auto" != before
    return began.environment.model_copy(update={"micro_batch_size": None}) if new else began.environment


def _rows_now(began: Provenance, experiment: Experiment) -> dict[str, Environment]:
    """Return the environment with the current micro-batch, for provenance.json; nothing if the run began elsewhere."""
    before, now = began.environment, environment_of(experiment)
    if (before.device, before.processes) != (now.device, now.processes):
        return {}  # the micro-batch of this machine says nothing about that one
    return {"environment": before.model_copy(update={"micro_batch_size": now.micro_batch_size})}


def _config_of(directory: RunDirectory, began: Provenance, overrides: Sequence[str]) -> Loaded:
    """Read a run's config, with overrides. Raises ConfigError for changes that are not allowed."""
    directory.refuse_other_config()
    loaded = load(directory.path / "config.yaml", overrides)  # once: the files that it names may have been moved
    if overrides:
        refuse_changes(began, loaded, directory.path, overrides=overrides)
    refuse_other_plugins(began.plugins, codes_of(loaded.plugins), directory.path)
    return loaded


def _train(
    directory: RunDirectory,
    loaded: Loaded,
    experiment: Experiment,
    console: Console,
    *,
    started: float,
    restored: bool | None = None,
    judge: Judge | None = None,
    profile: int | None = None,
) -> None:
    """Train to the end.

    started   start of the command, by time.monotonic
    restored  None for a new run; True for a resumed run with a checkpoint
    """
    config, run, minutes, began = loaded.config, experiment.run, loaded.config.run.max_minutes, directory.provenance()

    def show(record: Record) -> None:
        if record.evaluation and record.evaluation.examples:
            directory.write_json("examples.json", readable(record.evaluation.examples, experiment))

    job = Job(
        run,
        experiment.settings,
        experiment.train,
        {"validation": experiment.validation, "test": experiment.test},
        experiment.accumulate,
        experiment.device,
        loaded,
        directory,
        console,
        experiment.accumulate(()).metrics,
        label=f"{config.name}-{directory.path.resolve().name}",
        resume=directory.path,
        show=show,
        best=config.checkpoint.best,
        milestones=set(experiment.milestones.values()),
        until=math.inf if minutes is None else started + 60 * minutes,
        page=lambda unfinished: write_report(directory, unfinished),
        judge=judge,
    )
    # Continue: with the files and the length of now.
    if restored is not None and run.learner.world.first:
        directory.keep_tokens(experiment.store.tokenizer, experiment.vocabulary.counts, began.id)  # they may be damaged
        if began.steps != job.settings.steps and run.step:
            console.say(other_length(job.settings, began.steps, run.step))
    evaluated = continued(job, restored, **length_of(experiment), **_rows_now(began, experiment))
    # Train.
    console.say(opening(loaded, experiment, directory.path))
    if profile:
        job = replace(job, profile=Profiler(profile, run, config, directory, lambda found: console.say(shown(found))))
    else:
        record_steps(config.train.graph, job.run, job.settings, job.device, console.say)
    if experiment.choices.compile != "off":
        with console.progress(0, None, "compiling", ""):
            seconds = warm_up(experiment)
        console.say(f"compiled in {seconds:.0f} s")
    try:
        train_to_the_end(job, evaluated=evaluated)
    except DivergedError as error:
        raise with_cures(error, directory) from None
    if run.learner.world.first:
        page = write_report(directory)
        console.say(closing(directory, page, training_seconds(directory.records())))


def warm_up(experiment: Experiment) -> float:
    """Compile the networks by a forward and backward pass without an update; returns the seconds it took."""
    run, settings, device = experiment.run, experiment.settings, experiment.device
    learner, began = run.learner, time.perf_counter()
    batch = batch_of(run.step, run, settings, experiment.train, device)[: settings.micro_batch_size]
    learner.objective.train()
    learner.at_step(settings.seed, run.step, batch.example_ids.cpu().numpy())
    rng = learner.keys.streams(batch.example_ids)
    backward(learner.losses(batch, rng, settings.precision).terms)
    run.optimizer.zero_grad(set_to_none=True)
    return time.perf_counter() - began
