"""The memory and the time that an experiment needs: forecast from shapes, or tried."""

import numpy as np
import torch

from electra_lab.assembly.budget import count_parameters
from electra_lab.assembly.build import (
    Built,
    build,
    loop_settings,
    make_optimizer,
    outline,
    vocabulary_or_bert,
    vocabulary_size,
)
from electra_lab.assembly.choices import Scale, precision_by_rule
from electra_lab.checks.guards import on_trial
from electra_lab.config.load import Loaded
from electra_lab.config.schema import ExperimentConfig
from electra_lab.data.rows import Rows
from electra_lab.data.vocabulary import stand_in_vocabulary
from electra_lab.parallel.session import neighbours
from electra_lab.parallel.world import World
from electra_lab.planning.forecast import Forecast, Workload, fits, is_small, parts_by_network, parts_of
from electra_lab.planning.memory import free_bytes, is_shortage, shapes_only
from electra_lab.training.device import Precision
from electra_lab.training.loop import Run
from electra_lab.training.step import backward
from registry.errors import OutOfMemoryError


def forecast(loaded: Loaded[ExperimentConfig], device: torch.device) -> Forecast:
    """Return the needs of a run on `device`. No corpus is read, and weights have no memory. Raises ConfigError."""
    built = outline(loaded, vocabulary_or_bert(loaded), shapes_only())
    precision, _ = precision_by_rule(loaded.config.train.precision, Scale.of(loaded, 0).width, device)
    work = workload(loaded, built, precision)
    if loaded.config.train.micro_batch_size == "auto":
        work = work.fitting(device)
    return Forecast(
        vocabulary_size=vocabulary_size(loaded),
        parameters=count_parameters(built.networks),
        parts=parts_by_network(built.networks),
        steps=built.steps,
        flops=built.flops,
        paper_flops=built.paper_flops,
        precision=precision,
        rows=work.settings.micro_batch_size,
        state_bytes=work.state_bytes(),
        working_bytes=work.working_bytes(),
        evaluation_bytes=work.evaluation_bytes(),
    )


def trial_seconds(loaded: Loaded[ExperimentConfig], needs: Forecast, device: torch.device) -> float | None:
    """Return the seconds of the whole training, from a few steps; None if a step is too large to be tried here."""
    absent = device.type == "cuda" and not torch.cuda.is_available()
    if absent or not is_small(needs):
        return None
    with torch.random.fork_rng(devices=[]):
        built = build(loaded, vocabulary_or_bert(loaded))
    built.learner.objective.to(device)
    return workload(loaded, built, needs.precision).at_a_time(needs.rows).seconds(device)


def workload(loaded: Loaded[ExperimentConfig], built: Built, precision: Precision) -> Workload:
    """Return the parts of an experiment that planning needs."""
    config = loaded.config
    run = Run(built.learner, make_optimizer(loaded, built.learner.objective))
    settings = loop_settings(
        config, seed=config.seed, steps=built.steps, flops=built.flops, examples=0, precision=precision
    )
    return Workload(run, settings, config.data.sequence_length, built.vocabulary.size)


def rows_at_a_time(
    loaded: Loaded[ExperimentConfig], built: Built, rows: Rows, device: torch.device, world: World, precision: Precision
) -> int:
    """Return the micro-batch that fits into memory, the same on all ranks: by its predicted bytes, then by a trial."""
    config, learner = loaded.config, built.learner
    sketched = outline(loaded, stand_in_vocabulary(built.vocabulary.size), shapes_only())
    work = workload(loaded, sketched, precision)
    state, free = work.state_bytes(), free_bytes(device)
    divided = config.train.parallel == "fsdp" and world.size > 1
    if divided:
        state //= world.size
    if free is not None and device.type == "cpu" and world.size > 1:  # the processes of a machine share its memory
        free //= neighbours()

    def works(size: int) -> bool:
        if not fits(state, work.at_a_time(size).working_bytes(), free):
            return False
        # Rows of full length: batches that are cut to their longest row may all come later.
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
        failing = world.sum({"failing": torch.tensor(float(not works(size)), device=device)})
        if not failing["failing"]:
            return size
    cure = "" if divided else ", or divide them among devices by train.parallel: fsdp"
    raise OutOfMemoryError(
        "there is not enough memory for a step of one row at a time (train.micro_batch_size: auto). Lower "
        f"data.sequence_length or the networks' sizes{cure}."
    )
