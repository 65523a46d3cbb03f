"""Run and resume: consume the loop's records, save checkpoints, stop when asked to."""

from __future__ import annotations

import hashlib
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch

from electra_lab.assemble import Experiment, assemble, check, open_data
from electra_lab.config.load import Loaded, dump, load
from electra_lab.runs import summary
from electra_lab.runs.console import Console
from electra_lab.runs.directory import RunDirectory, refuse_used
from electra_lab.runs.provenance import differences, environment, provenance
from electra_lab.runs.report import write_report
from electra_lab.training.checkpoint import load_newest, save
from electra_lab.training.device import choose_device
from electra_lab.training.loop import train
from registry.errors import ConfigError, DataError, Interrupted, OutOfMemoryError, Preempted


def run(file: Path, overrides: list[str], out: Path | None, device: str) -> Path:
    """Train an experiment from its file; returns the run directory. Raises LabError; nothing is written before data
    and networks are known to be good."""
    refuse_used(out)
    loaded = load(file, overrides)
    check(loaded)
    where, console = choose_device(device), Console()
    experiment = assemble(loaded, open_data(loaded, console.say), where)
    directory = RunDirectory.create(out, loaded.config.name)
    with directory.locked():
        config = dump(loaded.config)
        directory.write("source.yaml", file.read_text(encoding="utf-8-sig"))
        directory.write("config.yaml", config)
        for plugin in loaded.plugins:
            directory.keep_plugin(plugin.file)
        directory.write_json("provenance.json", provenance(loaded, experiment, config))
        _train(directory, loaded, experiment, console)
    return directory.path


def resume(path: Path, device: str) -> Path:
    """Go on with a run from its newest valid checkpoint. Raises LabError."""
    directory = RunDirectory.open(path)
    with directory.locked():
        started = directory.read_json("provenance.json")
        config = path / "config.yaml"
        if hashlib.sha256(config.read_bytes()).hexdigest() != started["config_sha256"]:
            raise ConfigError(f"{config}: was changed since the run began. Undo that, or start a new run from it.")
        loaded = load(config)
        for plugin, before in zip(loaded.plugins, started["plugins"], strict=True):
            if plugin.sha256 != before["sha256"]:
                kept = path / "plugins" / plugin.file.name
                raise ConfigError(f"{plugin.file}: was changed since the run began; the run's version is {kept}.")
        where, console = choose_device(device), Console()
        store = open_data(loaded, console.say)
        if store.key != started["data"]["store"]:
            raise DataError(
                f"{path}: the corpus is not the one that the run began with (token store {store.key}, then "
                f"{started['data']['store']}). For corpus docstrings, other versions of Python or torch do that."
            )
        experiment = assemble(loaded, store, where)
        if changes := differences(started["environment"], environment(experiment)):
            console.say(f"note: going on is not bit-exact, because of {', '.join(changes)}")
        state = load_newest(directory.checkpoints, experiment.run.objective, experiment.run.optimizer, console.say)
        if state:
            experiment.run.restore(state)
        directory.truncate(experiment.run.step)
        if experiment.run.step >= experiment.plan.steps:
            console.say("the run is complete already")
        else:
            console.say(f"going on after step {experiment.run.step}")
        _train(directory, loaded, experiment, console)
    return path


def _train(directory: RunDirectory, loaded: Loaded, experiment: Experiment, console: Console) -> None:
    plan, every = experiment.plan, loaded.config.checkpoint.every
    console.say(summary.opening(loaded, experiment, directory.path))

    def save_checkpoint() -> None:
        state = experiment.run.state(plan.on_non_finite)
        saved, keep = experiment.run, loaded.config.checkpoint.keep
        save(directory.checkpoints, saved.step, saved.objective, saved.optimizer, state, keep)

    started = time.perf_counter()
    try:
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
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise OutOfMemoryError(
            f"step {experiment.run.step + 1} needs more memory than there is ({str(error).splitlines()[0]}). Set "
            f"train.micro_batch_size below {plan.micro_batch_size}: the result stays the same."
        ) from error
    report = write_report(directory)
    console.say(summary.closing(directory, report, time.perf_counter() - started))


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM, to be acted on between two steps. A second one acts at once."""
    arrived: list[int] = []
    handled = (signal.SIGINT, signal.SIGTERM)

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
