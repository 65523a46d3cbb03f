"""Run and resume: consume the loop's records, save checkpoints, stop when asked to."""

from __future__ import annotations

import hashlib
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from types import FrameType

import torch

from electra_lab.assemble import Experiment, assemble, check, open_data
from electra_lab.config.load import Loaded, dump, load
from electra_lab.forecast import forecast
from electra_lab.runs import summary
from electra_lab.runs.console import Console
from electra_lab.runs.directory import RunDirectory, refuse_used
from electra_lab.runs.provenance import differences, environment, provenance
from electra_lab.runs.report import write_report
from electra_lab.training.checkpoint import checkpoints, load_newest, save
from electra_lab.training.device import choose_device
from electra_lab.training.loop import train
from registry import Plugin
from registry.errors import CheckpointError, ConfigError, DataError, Interrupted, OutOfMemoryError, Preempted


def run(file: Path, overrides: list[str], out: Path | None, device: str) -> Path:
    """Train an experiment from its file; returns the run directory. Raises LabError; nothing is written before data
    and networks are known to be good."""
    refuse_used(out)
    loaded = load(file, overrides)
    source = file.read_text(encoding="utf-8-sig")  # now: it may be edited while the corpus is read
    if absent := check(loaded):
        raise absent
    where, console = choose_device(device), Console()
    store = open_data(loaded, console.say)
    with _enough_memory():
        experiment = assemble(loaded, store, where)
        directory = RunDirectory.create(out, loaded.config.name)
        with directory.locked():
            config = dump(loaded.config)
            directory.write("source.yaml", source)
            directory.write("config.yaml", config)
            for plugin in loaded.plugins:
                directory.keep_plugin(kept_name(plugin), plugin.source)
            directory.write_json("provenance.json", provenance(loaded, experiment, config))
            _train(directory, loaded, experiment, console)
    return directory.path


def dry_run(file: Path, overrides: list[str], out: Path | None, device: str) -> str:
    """What `run` would do and need, in words; reads no corpus, writes nothing. Raises LabError."""
    refuse_used(out)
    loaded = load(file, overrides)
    if absent := check(loaded):
        Console().say(f"note: {absent} A run would stop there.")
    # A plan may be for another machine, so a device that is not here is no mistake.
    where = torch.device(device) if device == "cuda" else choose_device(device)
    return summary.forecast(loaded, forecast(loaded, where), where)


def resume(path: Path, device: str) -> Path:
    """Go on with a run from its newest valid checkpoint. Raises LabError."""
    directory = RunDirectory.open(path)
    with directory.locked(), _enough_memory():
        loaded, experiment, console, state = _reopened(directory, device)
        directory.truncate(experiment.run.step)
        if not state:
            console.say("there is no checkpoint yet; starting again from the beginning")
        elif experiment.run.step >= experiment.plan.steps:
            console.say("the run is complete already")
        else:
            console.say(f"going on after step {experiment.run.step}")
        _train(directory, loaded, experiment, console)
    return path


def reopen(path: Path, device: str) -> tuple[Loaded, Experiment]:
    """A finished run with the weights of its end, to be looked at. Raises LabError."""
    directory = RunDirectory.open(path)
    with _enough_memory():
        loaded, experiment, _, state = _reopened(directory, device)
    if not state or experiment.run.step < experiment.plan.steps:
        raise CheckpointError(f"{path}: has no sound checkpoint of its end. electra-lab resume {path} makes it anew.")
    return loaded, experiment


def _reopened(directory: RunDirectory, device: str) -> tuple[Loaded, Experiment, Console, bool]:
    """What a run directory describes, with its newest checkpoint loaded if there is one."""
    path = directory.path
    started = directory.read_json("provenance.json")
    try:
        config_sha256 = started["config_sha256"]
        plugins = [(p["sha256"], p.get("package")) for p in started["plugins"]]
        store_key, environment_then = started["data"]["store"], started["environment"]
    except (KeyError, TypeError):
        raise CheckpointError(f"{path / 'provenance.json'}: is damaged; the run cannot be resumed.") from None
    config = path / "config.yaml"
    if hashlib.sha256(config.read_bytes()).hexdigest() != config_sha256:
        raise ConfigError(f"{config}: was changed since the run began. Undo that, or start a new run from it.")
    loaded = load(config)
    for plugin, then in zip_longest(loaded.plugins, plugins):
        if plugin is None or (plugin.sha256, plugin.package) != then:
            what = f"{plugin.file} ({plugin.package})" if plugin and plugin.package else getattr(plugin, "file", path)
            raise ConfigError(f"{what}: the plug-ins changed since the run began; {path / 'plugins'} has what ran.")
    where, console = choose_device(device), Console()
    store = open_data(loaded, console.say)
    if store.key != store_key:
        raise DataError(
            f"{path}: the corpus is not the one that the run began with (token store {store.key}, was {store_key})."
            " Its files changed, or the version of tokenizers; for corpus docstrings, of Python or torch."
        )
    experiment = assemble(loaded, store, where, restored=bool(checkpoints(directory.checkpoints)))
    if experiment.frozen != started.get("frozen_generator") and experiment.frozen:
        raise DataError(
            f"{path}: the run whose generator is taken has another checkpoint now ({experiment.frozen}, was "
            f"{started.get('frozen_generator')}), and this run has none of its own yet. Start a new run."
        )
    if changes := differences(environment_then, environment(experiment)):
        console.say(f"note: going on is not bit-exact, because of {', '.join(changes)}")
    state = load_newest(directory.checkpoints, experiment.run.objective, experiment.run.optimizer, console.say)
    if state:
        experiment.run.restore(state)
    return loaded, experiment, console, bool(state)


def kept_name(plugin: Plugin) -> str:
    """What a plug-in's copy in the run directory is called; two files may share a name."""
    return f"{plugin.sha256[:8]}-{plugin.file.name}"


def _train(directory: RunDirectory, loaded: Loaded, experiment: Experiment, console: Console) -> None:
    plan, every = experiment.plan, loaded.config.checkpoint.every
    console.say(summary.opening(loaded, experiment, directory.path))

    def save_checkpoint() -> None:
        state = experiment.run.state(plan.on_non_finite)
        saved, keep = experiment.run, loaded.config.checkpoint.keep
        directory.flush()
        save(directory.checkpoints, saved.step, saved.objective, saved.optimizer, state, keep)

    started = time.perf_counter()
    with _signals() as arrived, console.progress(experiment.run.step, plan.steps):
        for record in train(experiment.run, plan, experiment.train, experiment.held_out, experiment.vocabulary):
            if record.evaluation and record.evaluation.examples:
                directory.write_json("examples.json", summary.readable(record.evaluation.examples, experiment))
            if record.values:
                directory.append(record.values)
                console.record(record.values)
                continue
            console.advance(record.step)
            done = record.step == plan.steps
            if done or arrived or record.step % every == 0:
                save_checkpoint()
            if arrived and not done:
                raise _stopped(arrived[0], record.step, directory.path)
    report = write_report(directory)
    console.say(summary.closing(directory, report, time.perf_counter() - started))


@contextmanager
def _enough_memory() -> Iterator[None]:
    """Tell what torch says of memory in a sentence; on the CPU it says it in a plain RuntimeError."""
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


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP, to be acted on between two steps. A second one acts at once."""
    arrived: list[int] = []
    every = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handled = [each for each in every if signal.getsignal(each) is not signal.SIG_IGN]  # as nohup has it

    def note(number: int, _: FrameType | None) -> None:
        arrived.append(number)
        for each in handled:
            signal.signal(each, before[each])

    try:
        before = {each: signal.signal(each, note) for each in handled}
    except ValueError:  # not in the main thread, where signals cannot be handled
        yield arrived
        return
    try:
        yield arrived
    finally:
        for each in handled:
            signal.signal(each, before[each])


def _stopped(number: int, step: int, path: Path) -> Interrupted | Preempted:
    kind = Interrupted if number == signal.SIGINT else Preempted
    return kind(f"stopped and saved after step {step}. Go on with: electra-lab resume {path}")
