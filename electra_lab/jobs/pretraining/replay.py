"""Repeat the steps of a run that diverged, from its newest checkpoint, and find the cause."""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

import registry
from electra_lab.assembly.experiment import Experiment
from electra_lab.checks.diagnosis import Origin, Probe
from electra_lab.config.load import Loaded
from electra_lab.data.store import Store, is_store, load_store
from electra_lab.jobs.lifecycle import enough_memory, refuse_several_processes
from electra_lab.jobs.pretraining.execute import reassembled
from electra_lab.jobs.provenance import folder_of_store
from electra_lab.presentation.console import Console
from electra_lab.pretrained.opening import run_config
from electra_lab.storage.checkpoint import not_finite, tensors_of
from electra_lab.storage.provenance import Provenance
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training.device import choose_device
from electra_lab.training.execution import LossScale
from electra_lab.training.loop import advance, batch_of, examples_of
from electra_lab.training.step import StepResult, gradients
from registry.errors import DataError
from registry.listing import short


@dataclass(frozen=True)
class Finding:
    """The finding of a replay.

    kind       place: the forward or the backward pass, the norm of all gradients, the update of the weights; `nothing`
               if no step was rejected
    step       number of the step, from 1 as in the log; the last one that was repeated if there is nothing
    module     dotted name of the module; its class and the place of the class follow
    component  registered component that the module is a part of, and its place
    parameter  name of a parameter whose gradient, or whose value after the update, is not finite
    """

    kind: Literal["forward", "backward", "norm", "update", "nothing"]
    step: int
    text: str
    module: str | None = None
    of_class: str | None = None
    place: str | None = None
    component: str | None = None
    parameter: str | None = None

    @property
    def found(self) -> bool:
        return self.kind != "nothing"

    def json(self) -> dict[str, Any]:
        return {"found": self.found, **asdict(self)}


def replay(path: Path, device: str, store: Path | None = None) -> Finding:
    """Repeat the steps of a run from its newest checkpoint until one is rejected; nothing is written to its folder.

    store  token store, if it is not where the config says

    Raises LabError; InUse if the run is in progress.
    """
    refuse_several_processes()
    directory, console = RunDirectory.open(path), Console()
    with directory.observed(), enough_memory():
        loaded, experiment = _reopened(directory, device, store, console)
        last = _last(directory, experiment)
        begun = experiment.run.step
        console.say(f"repeating the steps {begun + 1:,} to {last:,}" if begun < last else "there is no step to repeat")
        experiment.run.learner.objective.train()
        experiment.run.begin(experiment.settings, experiment.device)
        experiment.run.watch.forget()
        with console.progress(begun, last):
            while experiment.run.step < last:
                if finding := _repeated(directory, loaded, experiment):
                    return finding
                console.advance(experiment.run.step)
    if begun >= last:
        text = f"there is no step to repeat: the newest checkpoint is that of the last step, {last:,}."
        return Finding("nothing", last, text)
    text = (
        f"no step was rejected: from the newest checkpoint, at step {begun:,}, to the end of the run, at step {last:,} "
        "or before, all steps are finite here. The cause may be the device, or the differences named above."
    )
    return Finding("nothing", last, text)


def _reopened(directory: RunDirectory, device: str, store: Path | None, console: Console) -> tuple[Loaded, Experiment]:
    """Assemble the run from its folder and the token store alone, and load its newest checkpoint."""
    loaded = run_config(directory.path)
    text = _store_of(loaded, directory.provenance(), store)
    return loaded, reassembled(directory, loaded, text, choose_device(device), console)[0]


def _store_of(loaded: Loaded, began: Provenance, store: Path | None) -> Store:
    folder = folder_of_store(store or loaded.config.data.store, began.data.store)
    if not is_store(folder):
        raise DataError(f"{folder}: there is no token store. If it was moved, name it with --store.")
    return load_store(folder)


def _last(directory: RunDirectory, experiment: Experiment) -> int:
    """Return an upper bound of the steps that the run has done: it ended before the next log line."""
    settings = experiment.settings
    logged = (record["step"] for record in directory.records() if record["split"] == "train")
    reached = max(experiment.run.step, max(logged, default=0))
    return min(settings.steps, (reached // settings.log_every + 1) * settings.log_every)


def _repeated(directory: RunDirectory, loaded: Loaded, experiment: Experiment) -> Finding | None:
    """Do the next step; return its fault, if it has one."""
    run, settings = experiment.run, experiment.settings
    step, scale = run.step, float(run.scale.scale) if run.scale else None
    result, rate = advance(run, settings, experiment.train, experiment.device)
    if int(run.watch.first) == step:
        return _diagnosed(directory, loaded, experiment, result, step, scale)
    spoilt = not_finite(tensors_of(run.learner.objective, run.optimizer), run.learner.objective)
    if not spoilt:
        return None
    name = spoilt[0].removeprefix("model.")
    options = ", ".join(f"{key} {value}" for key, value in loaded.config.optimizer.keywords().items())
    text = (
        f"step {step + 1:,}: loss and gradient are finite (norm {float(result.gradient_norm):.3g}), but after the "
        f"update {name} is not (other tensors: {len(spoilt) - 1:,}). Learning rate "
        f"{settings.learning_rate * rate:.3g}; {loaded.config.optimizer.type}: {options}."
    )
    return Finding("update", step + 1, text, parameter=name)


def _diagnosed(
    directory: RunDirectory, loaded: Loaded, experiment: Experiment, result: StepResult, step: int, scale: float | None
) -> Finding:
    """Recompute a rejected step, which left the weights unchanged."""
    run, settings, device = experiment.run, experiment.settings, experiment.device
    batch = batch_of(step, run, settings, experiment.train, device)
    run.learner.at_step(settings.seed, step, examples_of(step, run, settings))
    with Probe(run.learner.objective) as probe:
        gradients(
            run.learner,
            batch,
            settings.micro_batch_size,
            settings.precision,
            None if scale is None else LossScale(device, scale),
        )
    if origin := probe.forward or probe.backward:
        return _described(directory, loaded, origin, step + 1)
    norms = {n: float(p.grad.norm()) for n, p in run.learner.objective.named_parameters() if p.grad is not None}
    name, norm = max(norms.items(), key=lambda item: item[1])
    whole = float(result.gradient_norm)
    limit = f"; train.spike {settings.spike:g} x the average {float(run.watch.average):.3g}" if settings.spike else ""
    text = (
        f"step {step + 1:,}: every module and every gradient is finite, but the gradient's norm is {whole:.3g}{limit}. "
        f"The largest is that of {name} ({norm:.3g})."
    )
    return Finding("norm", step + 1, text, parameter=name)


def _described(directory: RunDirectory, loaded: Loaded, origin: Origin, step: int) -> Finding:
    call, start = origin.call, f"step {step:,}: "
    if call is None:
        text = f"{start}the gradient of {origin.parameter} is not finite; the forward pass is."
        return Finding(origin.kind, step, text, parameter=origin.parameter)
    of_class, place = type(call.module).__name__, _place(directory, call.module)
    component = _component(loaded, call.name)
    what = f"{call.name or 'the objective'} ({of_class}, {place})"
    part = f"; it is a part of {component}" if component else ""
    if origin.kind == "forward":
        text = f"{what} returned values that are not finite, from finite inputs (up to {call.largest_input:.3g}){part}."
    else:
        of = f", that of {origin.parameter}" if origin.parameter else ""
        text = (
            f"the forward pass is finite; in the backward pass, {what} is the first to turn finite gradients of its "
            f"outputs into one that is not finite{of}{part}."
        )
    return Finding(origin.kind, step, start + text, call.name, of_class, place, component, origin.parameter)


def _place(directory: RunDirectory, module: nn.Module) -> str:
    """Return file and line of a module's forward method, the file of a plug-in as the user knows it."""
    compiled = inspect.unwrap(type(module).forward).__code__
    file = Path(compiled.co_filename)
    copies = {directory.plugin(code).resolve(): Path(code.file) for code in directory.provenance().plugins}
    return f"{short(copies.get(file.resolve(), file))}:{compiled.co_firstlineno}"


def _component(loaded: Loaded, module: str) -> str | None:
    """Return the backbone that a module belongs to, if any, with its place."""
    network, _, rest = module.partition(".")
    chosen = getattr(loaded.config, network, None) if rest.split(".")[0] == "backbone" else None
    if chosen is None:
        return None
    return f"the backbone '{chosen.type}' of the {network}, {registry.backbones.get(chosen.type).place}"
