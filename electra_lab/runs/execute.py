"""Run, resume and reopen experiments."""

import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from pathlib import Path

import torch

from electra_lab.assembly.build import sketch
from electra_lab.assembly.experiment import Experiment, absent_data, assemble, check, open_data
from electra_lab.assembly.forecast import forecast
from electra_lab.config.load import Loaded, Source, dump, load, text_of
from electra_lab.reports.run_page import write_report
from electra_lab.runs import summary
from electra_lab.runs.console import Console
from electra_lab.runs.follow import follow, keep_checkpoint
from electra_lab.runs.progress import Phases
from electra_lab.runs.provenance import differences, environment, provenance
from electra_lab.storage.checkpoint import checkpoints, load_newest
from electra_lab.storage.run_directory import RunDirectory, refuse_used
from electra_lab.training.device import choose_device
from electra_lab.training.loop import Record, train
from registry.errors import CheckpointError, ConfigError, DataError, OutOfMemoryError


def run(file: Source, overrides: list[str], out: Path | None, device: str) -> Path:
    """Train an experiment; returns the run directory.

    Raises LabError. Nothing is written before data and networks have been checked.
    """
    refuse_several_processes()
    refuse_used(out)
    loaded = load(file, overrides)
    source = text_of(file)  # now: it may be edited while the corpus is read
    if absent := check(loaded):
        raise absent
    target, console = choose_device(device), Console()
    with Phases(console) as progress:
        store = open_data(loaded, console.say, progress)
    with enough_memory():
        experiment = assemble(loaded, store, target)
        directory = RunDirectory.create(out, loaded.config.name)
        with directory.locked():
            config = dump(loaded.config)
            directory.write("source.yaml", source)
            directory.write("config.yaml", config)
            began = provenance(loaded, experiment, config)
            for code, plugin in zip(began.plugins, loaded.plugins, strict=True):
                directory.keep_plugin(code, plugin.source)
            directory.keep_tokens(store.tokenizer, experiment.vocabulary.counts)
            directory.write_json("provenance.json", began.model_dump(mode="json"))
            _train(directory, loaded, experiment, console)
    return directory.path


def dry_run(file: Path, overrides: list[str], out: Path | None, device: str) -> str:
    """Describe what `run` would do and need. Reads no corpus, writes nothing. Raises LabError."""
    refuse_used(out)
    loaded = load(file, overrides)
    built = sketch(loaded)
    if absent := absent_data(loaded, built):
        Console().say(f"note: {absent} A run would stop there.")
    # A plan may be for another machine, so a device that is not here is not a mistake.
    target = torch.device(device) if device == "cuda" else choose_device(device)
    return summary.forecast(loaded, forecast(loaded, built, target), target)


def resume(path: Path, device: str) -> Path:
    """Continue a run from its newest valid checkpoint. Raises LabError."""
    refuse_several_processes()
    directory = RunDirectory.open(path)
    with directory.locked(), enough_memory():
        loaded, experiment, console, state = _reopened(directory, device)
        directory.truncate(experiment.run.step)
        directory.keep_tokens(experiment.store.tokenizer, experiment.vocabulary.counts)  # older runs lack them
        if not state:
            console.say("there is no checkpoint yet; starting again from the beginning")
        elif experiment.run.step >= experiment.settings.steps:
            console.say("the run is already complete")
        else:
            console.say(f"resuming after step {experiment.run.step}")
        _train(directory, loaded, experiment, console)
    return path


def reopen(path: Path, device: str) -> tuple[Loaded, Experiment]:
    """Open a finished run with its final weights, to look at it. Raises LabError."""
    directory = RunDirectory.open(path)
    with enough_memory():
        loaded, experiment, _, state = _reopened(directory, device)
    if not state or experiment.run.step < experiment.settings.steps:
        raise CheckpointError(
            f"{path}: its final checkpoint is missing or damaged. Recreate it: electra-lab resume {path}"
        )
    return loaded, experiment


def _reopened(directory: RunDirectory, device: str) -> tuple[Loaded, Experiment, Console, bool]:
    """Assemble the experiment of a run directory, and load its newest checkpoint if there is one."""
    path = directory.path
    began = directory.provenance()
    directory.refuse_other_format(began)
    config = path / "config.yaml"
    if hashlib.sha256(config.read_bytes()).hexdigest() != began.config_sha256:
        raise ConfigError(f"{config}: was changed since the run began. Undo that, or start a new run from it.")
    loaded = load(config)
    for plugin, then in zip_longest(loaded.plugins, began.plugins):
        if plugin is None or then is None or (plugin.sha256, plugin.package) != (then.sha256, then.package):
            name = f"{plugin.file} ({plugin.package})" if plugin and plugin.package else getattr(plugin, "file", path)
            raise ConfigError(
                f"{name}: the plug-ins changed since the run began; {path / 'plugins'} has the originals."
            )
    target, console = choose_device(device), Console()
    with Phases(console) as progress:
        store = open_data(loaded, console.say, progress)
    if store.key != began.data.store:
        raise DataError(
            f"{path}: the corpus or the tokenizer is not the one that the run began with (token store {store.key}, was "
            f"{began.data.store}). Its files changed, or the version of tokenizers; for corpus docstrings, of Python "
            "or torch."
        )
    experiment = assemble(loaded, store, target, restored=bool(checkpoints(directory.checkpoints)))
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
    if changes := differences(began.environment, environment(target, experiment.settings.precision)):
        console.say(f"note: the resumed run is not bit-exact, because of {', '.join(changes)}")
    run = experiment.run
    state = load_newest(directory.checkpoints, run.learner.objective, run.optimizer, console.say)
    if state:
        run.restore(state)
    return loaded, experiment, console, bool(state)


def _train(directory: RunDirectory, loaded: Loaded, experiment: Experiment, console: Console) -> None:
    run, settings, checkpoint = experiment.run, experiment.settings, loaded.config.checkpoint
    console.say(summary.opening(loaded, experiment, directory.path))
    started, milestones = time.perf_counter(), loaded.config.milestones
    keep = partial(keep_checkpoint, directory, run, settings, checkpoint.keep, milestones)
    if run.step == 0 and milestones:
        keep()

    def show(record: Record) -> None:
        if record.evaluation and record.evaluation.examples:
            directory.write_json("examples.json", summary.readable(record.evaluation.examples, experiment))

    records = train(
        run,
        settings,
        experiment.train,
        experiment.validation,
        experiment.test,
        experiment.accumulate,
        experiment.device,
    )
    follow(
        records,
        directory,
        console,
        steps=settings.steps,
        done=run.step,
        metrics=experiment.accumulate(()).metrics,
        is_kept=lambda step: step % checkpoint.every == 0 or step in milestones,
        keep=keep,
        show=show,
    )
    report = write_report(directory)
    console.say(summary.closing(directory, report, time.perf_counter() - started))


def refuse_several_processes() -> None:
    """Raise ConfigError under torchrun and the like: every process would train the same run."""
    number = os.environ.get("WORLD_SIZE", "1")
    if number != "1":
        raise ConfigError(
            f"WORLD_SIZE is {number}: training in several processes is not supported yet, and each of them would train "
            "the same run. Start one process, without torchrun; an ablation runs its cells in parallel by itself."
        )


@contextmanager
def enough_memory() -> Iterator[None]:
    """Turn torch's complaints about memory into OutOfMemoryError; on the CPU they come as a plain RuntimeError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        said = str(error)
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not re.search(
            r"can't allocate memory|not enough memory|out of memory", said
        ):
            raise
        raise OutOfMemoryError(
            f"there is not enough memory ({(said.splitlines() or ['no details'])[0]}). In a new run, lower "
            "train.micro_batch_size (which changes no mask and no draw), evaluate.batch_size, or the networks' sizes."
        ) from error
