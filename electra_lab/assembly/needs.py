"""The memory and the time that an experiment needs: forecast from shapes, or tried."""

import numpy as np
import torch

from electra_lab.assembly.budget import Scale, count_parameters, decide, precision_by_rule
from electra_lab.assembly.build import (
    Built,
    build,
    loop_settings,
    make_optimizer,
    outline,
    vocabulary_or_bert,
    vocabulary_size,
)
from electra_lab.assembly.data import allocate_memory, counted, number_of_rows, pack, random_rows
from electra_lab.assembly.initial_weights import evaluates_at_start
from electra_lab.checks.guards import on_trial
from electra_lab.config.load import Loaded
from electra_lab.config.schema import ExperimentConfig
from electra_lab.data.rows import Rows
from electra_lab.data.store import Store
from electra_lab.data.vocabulary import make_vocabulary, stand_in_vocabulary
from electra_lab.metrics import accumulator_of
from electra_lab.model.layers import use_kernel
from electra_lab.parallel.session import neighbours
from electra_lab.planning.forecast import (
    UNCOUNTED,
    Duration,
    Forecast,
    Workload,
    duration,
    fits,
    obstacle,
    parts_by_network,
    parts_of,
)
from electra_lab.planning.memory import free_bytes, shapes_only
from electra_lab.training.device import compile_modules
from electra_lab.training.execution import Precision
from electra_lab.training.loop import Run
from electra_lab.training.random import Streams
from electra_lab.training.step import backward
from registry.contracts.objective import ALONE, World
from registry.errors import OutOfMemoryError, is_shortage


def forecast(loaded: Loaded[ExperimentConfig], device: torch.device, store: Store | None = None) -> Forecast:
    """Return the needs of a run on `device`. No corpus is read, and weights have no memory. Raises ConfigError.

    store  token store of its text, if there is one
    """
    loaded = counted(loaded, store)
    built = outline(loaded, vocabulary_or_bert(loaded), shapes_only())
    precision, _ = precision_by_rule(loaded.config.train.precision, Scale.of(loaded, 0).width, device)
    work = workload(loaded, built, precision)
    with shapes_only():
        row_bytes = allocate_memory(loaded, built.learner.objective, 1, torch.device("cpu"))
    if loaded.config.train.micro_batch_size == "auto":
        work = work.fitting(device)
    return Forecast(
        vocabulary_size=vocabulary_size(loaded),
        parameters=count_parameters(built.networks),
        parts=parts_by_network(built.networks),
        steps=built.steps,
        epoch=number_of_rows(loaded, store) if store else None,
        flops=built.flops,
        paper_flops=built.paper_flops,
        precision=precision,
        rows=work.settings.micro_batch_size,
        state_bytes=work.state_bytes(),
        working_bytes=work.working_bytes(),
        evaluation_bytes=work.evaluation_bytes(),
        row_bytes=row_bytes,
        evaluates_at_start=evaluates_at_start(loaded.config, built.learner.objective),
    )


def trial(
    loaded: Loaded[ExperimentConfig],
    needs: Forecast,
    device: torch.device,
    store: Store | None = None,
    scale: Scale | None = None,
) -> Duration | str:
    """Return the time of the whole training from some steps and evaluations, as `assemble` would build them.

    Returns the reason instead if they cannot be tried here.

    store  token store of its text; without one, the rows are of random text
    scale  numbers that the rules of `auto` depend on, see `assemble`

    Raises ConfigError, also if `train.compile` needs a compiler that is missing.
    """
    if needs.steps is None:
        return UNCOUNTED
    if reason := obstacle(needs, device):
        return reason
    loaded = counted(loaded, store)
    config, steps = loaded.config, needs.steps
    # Rows of the run's sizes
    if store:
        vocabulary = make_vocabulary(store.tokenizer, torch.from_numpy(store.counts), device)
        train = pack(loaded, store.train, vocabulary)
        validation = pack(loaded, store.validation, vocabulary).sample(config.evaluate.tokens)
        test = pack(loaded, store.test, vocabulary).sample(config.evaluate.test_tokens)
        sizes = len(validation), len(test)
    else:
        vocabulary, length = vocabulary_or_bert(loaded, device), config.data.sequence_length
        number = max(config.train.batch_size, 4 * config.evaluate.batch_size)
        train = validation = test = random_rows(loaded, vocabulary, [4 * length] * -(-number // 4))
        sizes = -(-config.evaluate.tokens // length), -(-config.evaluate.test_tokens // length)
    # Networks, with the choices of `auto`
    with torch.random.fork_rng(devices=[]):
        built = build(loaded, vocabulary)
    objective = built.learner.objective.to(device)
    allocate_memory(loaded, objective, len(train), device)
    choices = decide(config.train, scale or Scale.of(loaded, built.flops.total(steps)), device, ALONE)
    use_kernel(choices.attention, objective)
    compile_modules(choices.compile, objective, built.networks.values())
    work = workload(loaded, built, choices.precision).at_a_time(needs.rows)
    # Numbers of evaluations and checkpoints in the whole training
    validations = needs.evaluates_at_start + (-(-steps // config.evaluate.every) if config.evaluate.every else 1)
    in_words = (config.checkpoint.milestones and config.checkpoint.milestones.words) or []
    checkpoints = -(-steps // config.checkpoint.every) + len(config.milestones) + len(in_words)
    return duration(
        work.run,
        work.settings,
        train,
        ((validation, validations * sizes[0]), (test, sizes[1])),
        accumulator_of(objective, vocabulary),
        device,
        graph=config.train.graph,
        saved=0.0 if config.checkpoint.asynchronous else checkpoints * (needs.state_bytes + needs.memory_bytes),
    )


def workload(loaded: Loaded[ExperimentConfig], built: Built, precision: Precision) -> Workload:
    """Return the parts of an experiment that planning needs."""
    config = loaded.config
    run = Run(built.learner, make_optimizer(loaded, built))
    settings = loop_settings(
        config, seed=config.seed, steps=built.steps or 1, flops=built.flops, examples=0, precision=precision
    )
    return Workload(run, settings, config.data.sequence_length, built.vocabulary.size)


def rows_at_a_time(
    loaded: Loaded[ExperimentConfig], built: Built, rows: Rows, device: torch.device, world: World, precision: Precision
) -> int:
    """Return the micro-batch that fits into memory, the same on all ranks: by its predicted bytes, then by a trial."""
    config, learner = loaded.config, built.learner
    shapes = outline(loaded, stand_in_vocabulary(built.vocabulary.size), shapes_only())
    work = workload(loaded, shapes, precision)
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
                rng = Streams.of(config.seed, built.flops.first, batch.example_ids)
                backward(learner.losses(batch, rng, precision).terms)
        except (RuntimeError, MemoryError) as error:
            if not is_shortage(error):
                raise
            return False
        return True

    for size in parts_of(config.train.batch_size // world.size, learner.group):
        failing = world.sum({"failing": torch.tensor(float(not works(size)), device=device)})
        if not failing["failing"]:
            return size
    cure = "" if divided else ", or divide them among devices by train.parallel: fsdp"
    raise OutOfMemoryError(
        "there is not enough memory for a step of one row (train.micro_batch_size: auto). Lower "
        f"data.sequence_length or the networks' sizes{cure}."
    )
