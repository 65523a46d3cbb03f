"""Run and resume: consume the loop's records, save checkpoints, stop when asked to."""

import hashlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from types import FrameType

import torch

from electra_lab.assembly.build import sketch
from electra_lab.assembly.experiment import Experiment, absent_data, assemble, check, open_data
from electra_lab.assembly.forecast import forecast
from electra_lab.config.load import Loaded, Source, dump, load, text_of
from electra_lab.reports.run_page import write_report
from electra_lab.runs import summary
from electra_lab.runs.console import Console
from electra_lab.runs.progress import Phases
from electra_lab.runs.provenance import differences, environment, provenance
from electra_lab.storage.checkpoint import checkpoints, load_newest, save
from electra_lab.storage.run_directory import RunDirectory, refuse_used
from electra_lab.training.device import choose_device
from electra_lab.training.loop import train
from registry.errors import CheckpointError, ConfigError, DataError, Interrupted, OutOfMemoryError, Preempted

TERMINATIONS = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]  # Windows has no SIGHUP


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
    if changes := differences(began.environment, environment(experiment)):
        console.say(f"note: the resumed run is not bit-exact, because of {', '.join(changes)}")
    run = experiment.run
    state = load_newest(directory.checkpoints, run.learner.objective, run.optimizer, console.say)
    if state:
        run.restore(state)
    return loaded, experiment, console, bool(state)


def _train(directory: RunDirectory, loaded: Loaded, experiment: Experiment, console: Console) -> None:
    run, settings, checkpoint = experiment.run, experiment.settings, loaded.config.checkpoint
    console.say(summary.opening(loaded, experiment, directory.path))
    started, metrics = time.perf_counter(), experiment.accumulate(()).metrics
    records = train(
        run,
        settings,
        experiment.train,
        experiment.validation,
        experiment.test,
        experiment.accumulate,
        experiment.device,
    )
    milestones = loaded.config.milestones

    def keep() -> None:
        state = run.state(settings.on_non_finite)
        directory.flush()
        save(directory.checkpoints, run.step, run.learner.objective, run.optimizer, state, checkpoint.keep, milestones)

    if run.step == 0 and milestones:
        keep()
    with _signals(console.say) as arrived, console.progress(run.step, settings.steps):
        for record in records:
            if record.evaluation and record.evaluation.examples:
                directory.write_json("examples.json", summary.readable(record.evaluation.examples, experiment))
            if record.values:
                directory.append(record.values)
                console.record(record.values, metrics)
                continue
            console.advance(record.step)
            done = record.step == settings.steps
            if done or arrived or record.step % checkpoint.every == 0 or record.step in milestones:
                keep()
            if arrived and not done:
                kind = Interrupted if arrived[0] == signal.SIGINT else Preempted
                cure = f"Resume with: electra-lab resume {directory.path}"
                raise kind(f"stopped and saved after step {record.step}. {cure}")
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


@contextmanager
def _signals(say: Callable[[str], None]) -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP, to be acted on between two steps. A second one acts at once."""
    arrived: list[int] = []
    can = threading.current_thread() is threading.main_thread()  # signals are handled only there
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, *TERMINATIONS) if can}
    before = {each: handler for each, handler in handlers.items() if handler is not signal.SIG_IGN}  # as under nohup

    def restore() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    def note(number: int, _: FrameType | None) -> None:
        arrived.append(number)
        restore()
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        with suppress(RuntimeError, OSError):  # the signal may have interrupted a write to the same stream
            say(f"{name}: saving after this step; a second one stops without saving")

    for each in before:
        signal.signal(each, note)
    try:
        yield arrived
    finally:
        restore()
