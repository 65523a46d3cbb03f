"""Decide what a run computes with where its experiment says `auto`: once, before the first step."""

import math
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from pydantic import BaseModel

from electra_lab.assembly.build import Built, sketch
from electra_lab.checks.guards import on_trial
from electra_lab.config.load import Loaded
from electra_lab.data.rows import Rows
from electra_lab.model.attention import KERNELS, Kernel, use_kernel
from electra_lab.parallel.session import neighbours
from electra_lab.parallel.world import World
from electra_lab.planning.forecast import FREE, parts_of, state_bytes, working_bytes
from electra_lab.planning.memory import free_bytes, is_shortage
from electra_lab.storage.machine import measured_folder, processor, remembered
from electra_lab.storage.provenance import Environment
from electra_lab.training.compilation import LONG, Compile, choose_compile, missing_compiler
from electra_lab.training.device import Precision, choose_precision, narrowest
from electra_lab.training.measure import fastest, seconds_of
from electra_lab.training.step import backward
from registry.errors import OutOfMemoryError

WORTH = 0.1  # of the FLOPs that make a training long: above it, a few steps are tried
TRIAL = {"cpu": 1e11, "cuda": 1e13}  # FLOPs of such a step, at most


@dataclass(frozen=True)
class Choices:
    """What a run computes with; provenance.json keeps it, so that a resume on the same device computes with it too."""

    precision: Precision
    attention: Kernel
    compile: Compile
    micro_batch_size: int  # of each process
    reason: str  # for what is compiled; "" if the experiment says so


class Measured(BaseModel):
    """The fastest way of those that were tried, with the seconds of each."""

    precision: Precision
    attention: Kernel
    seconds: dict[str, float] = {}


class Compiled(BaseModel):
    """What is compiled, and why, if `auto` decided; "" otherwise."""

    how: Compile
    reason: str = ""


def decide(
    loaded: Loaded,
    built: Built,
    rows: Rows,
    device: torch.device,
    world: World,
    *,
    began: Environment | None = None,
    shared: Path | None = None,
) -> Choices:
    """Decide, on all ranks alike. Raises ConfigError, OutOfMemoryError.

    began   the environment that the run began in, if it is resumed on the same device
    shared  a folder of experiments that are compared: the first that measures decides for all
    """
    train = loaded.config.train
    if began is not None:
        precision, kernel = cast("Precision", began.precision), cast("Kernel", began.attention)
    else:
        told = world.once(lambda: _measured(loaded, built, rows, device, shared).model_dump_json())
        found = Measured.model_validate_json(told)
        precision, kernel = found.precision, found.attention
    if began is not None and train.compile == "auto":
        compiled = Compiled(how=_possible(cast("Compile", began.compile), device))
    elif train.compile != "auto":  # by each rank, as a machine may lack the compiler
        compiled = _compiled(loaded, built, device, precision, shared)
    else:
        told = world.once(lambda: _compiled(loaded, built, device, precision, shared).model_dump_json())
        compiled = Compiled.model_validate_json(told)
    use_kernel(kernel, built.learner.objective)
    size = began.micro_batch_size if began is not None and began.processes == world.size else None
    if not isinstance(train.micro_batch_size, str):
        size = train.micro_batch_size or train.batch_size
    size = size or _rows_at_a_time(loaded, built, rows, device, world, precision)
    return Choices(precision, kernel, compiled.how, size, compiled.reason)


def _measured(loaded: Loaded, built: Built, rows: Rows, device: torch.device, shared: Path | None) -> Measured:
    train = loaded.config.train
    precision = choose_precision(train.precision, device)
    precisions: list[Precision] = [precision]
    if train.precision == "auto":
        precisions = list(dict.fromkeys(("fp32", narrowest(device))))
    kernels: list[Kernel] = ["fused"] if train.attention == "auto" else [train.attention]
    if train.attention == "auto" and use_kernel("fused", built.learner.objective):
        kernels = list(KERNELS)
    ways = [(each, kernel) for each in precisions for kernel in kernels]
    here = {**_machine(device), "ways": ways}
    usual = Measured(precision=precision, attention=kernels[0])
    short = len(ways) == 1 or built.flops.total(built.steps) < WORTH * LONG.get(device.type, math.inf)

    def measure() -> Measured:
        found = None if short else _tried(loaded, built, rows, device, ways)
        return found or usual

    if shared is not None:
        return remembered(Measured, shared, here, measure)
    if short:
        return usual
    config = loaded.config
    networks = [each.dump() for each in (config.discriminator, config.generator) if each is not None]
    sizes = {"rows": train.batch_size, "length": config.data.sequence_length, "objective": config.objective.dump()}
    return remembered(Measured, measured_folder(), {**here, **sizes, "networks": networks}, measure)


def _machine(device: torch.device) -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _compiled(
    loaded: Loaded, built: Built, device: torch.device, precision: Precision, shared: Path | None
) -> Compiled:
    """Say what is compiled. `auto` goes by the length of the training; in an ablation, by that of the first cell."""
    name, flops = loaded.config.train.compile, built.flops.total(built.steps)

    def choose() -> Compiled:
        how, reason = choose_compile(name, device, precision, flops)
        return Compiled(how=how, reason=reason)

    if name != "auto" or shared is None:
        return choose()
    first = remembered(Compiled, shared, {**_machine(device), "compile": name, "precision": precision}, choose)
    return first.model_copy(update={"how": _possible(first.how, device)})


def _possible(how: Compile, device: torch.device) -> Compile:
    """Return what was decided earlier, or "off" where there is no compiler."""
    # Looking for one imports torch's compiler, which takes seconds.
    return "off" if how != "off" and device.type == "cpu" and missing_compiler() else how


def _tried(
    loaded: Loaded, built: Built, rows: Rows, device: torch.device, ways: list[tuple[Precision, Kernel]]
) -> Measured | None:
    """Measure forward and backward passes; None if memory does not suffice for them."""
    config, learner = loaded.config, built.learner
    most = TRIAL[device.type] * config.train.batch_size / built.flops.per_step
    size = max(1, min(config.train.batch_size, int(most)))
    if isinstance(config.train.micro_batch_size, int):
        size = min(size, config.train.micro_batch_size)
    batch = rows.training_batch(config.seed, 0, size, device)

    def step(precision: Precision, kernel: Kernel) -> None:
        use_kernel(kernel, learner.objective)
        learner.at_step(config.seed, 0)
        backward(learner.losses(batch, config.seed, 0, precision).terms)
        learner.objective.zero_grad(set_to_none=True)

    try:
        with on_trial(learner.objective):
            seconds = seconds_of({" ".join(way): partial(step, *way) for way in ways}, device)
    except (RuntimeError, MemoryError) as error:
        if not is_shortage(error):
            raise
        return None
    precision, attention = fastest(seconds).split()
    return Measured(precision=precision, attention=attention, seconds=seconds)  # type: ignore[arg-type]


def _rows_at_a_time(
    loaded: Loaded, built: Built, rows: Rows, device: torch.device, world: World, precision: Precision
) -> int:
    """Return how many rows fit into memory, the same on all ranks: by their predicted bytes, then by a trial."""
    config, learner, drawn = loaded.config, built.learner, sketch(loaded)
    state, free = state_bytes(loaded, drawn), free_bytes(device)
    divided = config.train.parallel == "fsdp" and world.size > 1
    if divided:
        state //= world.size
    if free is not None and device.type == "cpu" and world.size > 1:  # a machine's memory is for all of its processes
        free //= neighbours()

    def fits(size: int) -> bool:
        needed = working_bytes(loaded, drawn, size, precision)
        if needed is not None and free is not None and state + needed > FREE * free:
            return False
        # Of full length: batches that are cut to their longest row may all come later.
        batch = rows.batch(np.arange(size) % len(rows), np.arange(size), device)
        try:
            with on_trial(learner.objective):
                learner.at_step(config.seed, built.flops.first)
                backward(learner.losses(batch, config.seed, built.flops.first, precision).terms)
        except (RuntimeError, MemoryError) as error:
            if not is_shortage(error):
                raise
            return False
        return True

    for size in parts_of(config.train.batch_size // world.size):
        failing = world.sum({"failing": torch.tensor(float(not fits(size)), device=device)})
        if not failing["failing"]:
            return size
    cure = "" if divided else ", or divide them among devices by train.parallel: fsdp"
    raise OutOfMemoryError(
        "there is not enough memory for a step of one row at a time (train.micro_batch_size: auto). Lower "
        f"data.sequence_length or the networks' sizes{cure}."
    )
