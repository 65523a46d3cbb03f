"""From a validated config to an experiment that can be trained."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from electra_lab.assembly.budget import Choices, Scale, count_parameters, decide, with_steps
from electra_lab.assembly.build import Built, build, loop_settings, make_optimizer, sketch, untrained_tokenizer, used
from electra_lab.assembly.data import allocate_memory, open_corpus, pack, prepared, random_rows
from electra_lab.assembly.initial_weights import (
    evaluates_at_start,
    load_initial_weights,
    origins,
    refuse_initial_weights,
)
from electra_lab.assembly.needs import rows_at_a_time
from electra_lab.checks.guards import rehearse
from electra_lab.config.load import Loaded
from electra_lab.config.sections import milestone_name
from electra_lab.data.rows import Rows
from electra_lab.data.store import Store, is_store
from electra_lab.data.vocabulary import make_vocabulary, stand_in_vocabulary
from electra_lab.data.words import steps_of_words, words_of_rows
from electra_lab.metrics import accumulator_of
from electra_lab.model.layers import use_kernel
from electra_lab.model.network import Network, backbones_of
from electra_lab.planning.forecast import SMALL
from electra_lab.storage.provenance import Environment, Start
from electra_lab.storage.records import AUTO, OFF
from electra_lab.training.device import compile_modules, layers_of
from electra_lab.training.evaluation import Accumulate
from electra_lab.training.execution import Precision
from electra_lab.training.loop import Run, Settings
from registry import Batches, Objective, Tracker, Vocabulary, objectives, trackers, using
from registry.component import Component
from registry.contracts.objective import ALONE, World
from registry.errors import ConfigError, DataError, LabError, did_you_mean


@dataclass(frozen=True)
class Experiment:
    """Everything that a run needs, built."""

    run: Run
    settings: Settings
    train: Rows
    validation: Batches  # a sample of the rows
    test: Batches
    vocabulary: Vocabulary
    store: Store
    device: torch.device
    parameters: dict[str, int]  # by network, `shared` and `total`
    model: Network
    accumulate: Accumulate  # factory of the accumulator of the objective's metrics
    init: dict[str, Start]  # by network, the weights that `init` or the objective named
    weights: dict[str, str]  # by part, their origin; empty if a checkpoint will be loaded
    paper_flops: int  # of the whole training, as Clark et al. (2020) count
    choices: Choices
    milestones: dict[str, int] = field(default_factory=dict)  # by name, the steps whose checkpoints are kept


def check(loaded: Loaded) -> LabError | None:
    """Find every problem that does not require reading the corpus. Raises ConfigError.

    Data or libraries that this machine lacks are not errors of the file: the error of a run is returned.
    """
    return absent_data(loaded, sketch(loaded))


def absent_data(loaded: Loaded, built: Built) -> LabError | None:
    """Return the error of a run for data or libraries that this machine lacks, if any. Raises ConfigError."""
    absent: LabError | None = None
    attempts: list[Callable[[], object]] = [
        lambda: _try_plugins(loaded, built),
        lambda: prepared(loaded) if is_store(loaded.config.data.store) else open_corpus(loaded),
        lambda: refuse_initial_weights(loaded, built),
        lambda: _refuse_unknown_metric(
            loaded, accumulator_of(built.learner.objective, stand_in_vocabulary(built.vocabulary.size))
        ),
    ]
    for attempt in attempts:
        try:
            with using(objectives.get(loaded.config.objective.type)):
                attempt()
        except DataError as error:
            absent = absent or error
    return absent or absent_tracker(loaded)


def make_tracker(chosen: Component) -> Tracker:
    """Raises ValueError if the component refuses its options."""
    return trackers.get(chosen.type).component(**chosen.keywords())


def absent_tracker(loaded: Loaded[Any]) -> LabError | None:
    """Return the error that a run would raise for a library that is not installed, None if there is none.

    Raises ConfigError if a tracker refuses its options.
    """
    for number, chosen in enumerate(loaded.config.trackers):
        try:
            with using(trackers.get(chosen.type)):
                make_tracker(chosen).check()
        except ConfigError as error:
            return loaded.problem(("trackers", number), f"{chosen.type} {error}")
        except ValueError as error:
            raise loaded.problem(("trackers", number), f"{chosen.type} refuses this: {error}") from error
    return None


def assemble(
    loaded: Loaded,
    store: Store,
    device: torch.device,
    *,
    restored: bool = False,
    world: World = ALONE,
    began: Environment | None = None,
    scale: Scale | None = None,
) -> Experiment:
    """Assemble an experiment. Raises ConfigError at the line that caused it, OutOfMemoryError.

    Epochs become steps here, by the number of rows.

    restored  True if a checkpoint of the run itself will be loaded, so that weights from elsewhere are not needed
    world     processes that train the experiment
    began     environment of a run that is resumed on the same device
    scale     numbers that the rules of `auto` depend on; by default the experiment's
    """
    refuse_uneven(loaded, world)
    # Rows, whose number decides the steps of epochs
    vocabulary = make_vocabulary(store.tokenizer, torch.from_numpy(store.counts), device)
    splits = (store.train, store.validation, store.test)
    rows, validation, test = (pack(loaded, split, vocabulary) for split in splits)
    loaded = with_steps(loaded, len(rows))
    config = loaded.config
    # Networks. Weights are drawn on the CPU, so that a seed means the same weights on every device.
    with torch.random.fork_rng(devices=[]):
        built = build(loaded, vocabulary, seed=config.seed)
    assert built.steps is not None
    init = {} if restored else load_initial_weights(loaded, built, store)
    weights = {} if restored else origins(built, init)
    objective = built.learner.objective.to(device)
    allocate_memory(loaded, objective, len(rows), device)
    # The rules of `auto`, before a first step with their kernels
    choices = decide(config.train, scale or Scale.of(loaded, built.flops.total(built.steps)), device, world, began)
    if not use_kernel(choices.attention, objective):  # no backbone has exact attention
        choices.reasons.pop("attention", None)
    accumulate = accumulator_of(objective, vocabulary)
    with using(objectives.get(config.objective.type)):
        _refuse_unknown_metric(loaded, accumulate)
    reached = _rehearsed(loaded, built, rows, accumulate, device, choices.precision)
    # Settings, with the rows that fit into memory
    settings = loop_settings(
        config, seed=config.seed, steps=built.steps, flops=built.flops, examples=config.evaluate.examples,
        precision=choices.precision,
    )  # fmt: skip
    settings = replace(settings, evaluate_at_start=evaluates_at_start(config, objective))
    if config.train.micro_batch_size == "auto":
        size = began.micro_batch_size if began is not None and began.processes == world.size else None
        size = size or rows_at_a_time(loaded, built, rows, device, world, choices.precision)
        settings = replace(settings, micro_batch_size=size)
    compile_modules(choices.compile, objective, built.networks.values())
    # An objective that changes with the step may leave out other parameters later.
    parallelize(loaded, built, world, device, partly=not reached or type(objective).at_step is not Objective.at_step)
    run, parameters = Run(built.learner, make_optimizer(loaded, built)), count_parameters(built.networks)
    return Experiment(
        run=run,
        settings=settings,
        train=rows,
        validation=validation.sample(config.evaluate.tokens),
        test=test.sample(config.evaluate.test_tokens),
        vocabulary=vocabulary,
        store=store,
        device=device,
        parameters=parameters,
        model=built.model,
        accumulate=accumulate,
        init=init,
        weights=weights,
        paper_flops=built.paper_flops.total(built.steps),
        choices=choices,
        milestones=_milestones(loaded, rows, store, vocabulary, settings.steps),
    )


def _milestones(loaded: Loaded, rows: Rows, store: Store, vocabulary: Vocabulary, steps: int) -> dict[str, int]:
    """Return the step of each milestone by its name. Raises ConfigError for one that is never reached, DataError."""
    config, milestones = loaded.config, loaded.config.checkpoint.milestones
    if milestones is None:
        return {}
    steps_by_name = {"step-0": 0, **config.milestones_of_tokens}
    if milestones.words is None:
        return steps_by_name
    words = words_of_rows(rows, store.train, vocabulary)
    reached, end = steps_of_words(milestones.words, words, rows, config.seed, config.train.batches, steps)
    for number, step in zip(milestones.words, reached, strict=True):
        if step > steps:
            reason = f"{number:,.0f} words are never reached: training ends after {end:,.0f}."
            raise loaded.problem(("checkpoint", "milestones", "words"), reason)
        steps_by_name[milestone_name("words", number)] = step
    return steps_by_name


def _rehearsed(
    loaded: Loaded, built: Built, rows: Rows, accumulate: Accumulate, device: torch.device, precision: Precision
) -> bool:
    """Try every component on two rows; returns whether every parameter that learns got a gradient."""
    config, entry = loaded.config, objectives.get(loaded.config.objective.type)
    with using(*used(loaded)):
        batch = rows.training_batch(config.seed, 0, 2, device)
        return rehearse(built.learner, entry, batch, config.seed, precision, accumulate)


def _try_plugins(loaded: Loaded, built: Built) -> None:
    """Try the components of an experiment with plug-ins on random text, unless it is too large to be tried here.

    built  sketch of the experiment
    """
    if not loaded.plugins or 4 * count_parameters(built.networks)["total"] > SMALL:
        return
    length, words = loaded.config.data.sequence_length, stand_in_vocabulary(built.vocabulary.size)
    rows = random_rows(loaded, words, (length, 4 * length, 7))
    with torch.random.fork_rng(devices=[]):
        built = build(loaded, words)
    accumulate = accumulator_of(built.learner.objective, words)
    try:
        _rehearsed(loaded, built, rows, accumulate, torch.device("cpu"), "fp32")
    except (IndexError, RuntimeError):
        if untrained_tokenizer(loaded):
            raise
        # A plug-in may need the true size of the vocabulary, a guess before the tokenizer is trained.


def _refuse_unknown_metric(loaded: Loaded, accumulate: Accumulate) -> None:
    """Raise ConfigError if checkpoint.best names a metric that the objective does not have."""
    best = loaded.config.checkpoint.best
    if best in (AUTO, OFF) or best in (metrics := accumulate(()).metrics):
        return
    hint = did_you_mean(best, [AUTO, OFF, *metrics])
    raise loaded.problem(("checkpoint", "best"), f"the objective has no metric {best!r}.{hint}")


def refuse_uneven(loaded: Loaded, world: World, group: int = 1) -> None:
    """Raise ConfigError if a batch cannot be divided among the processes, in whole groups of rows."""
    train = loaded.config.train
    numbers: list[tuple[tuple[str, ...], int]] = [(("batch_size",), train.batch_size)]
    if warmup := getattr(train, "batch_warmup", None):
        numbers += [(("batch_warmup", key), getattr(warmup, key)) for key in ("start", "increment")]
    for key, rows in numbers:
        if rows % (world.size * group):
            groups = f" in groups of {group} (objective.group)" if group > 1 else ""
            reason = f"{rows} rows cannot be divided evenly among {world.size} processes{groups}."
            raise loaded.problem(("train", *key), f"{reason} Use a multiple of {world.size * group}.")


def parallelize(loaded: Loaded, built: Built, world: World, device: torch.device, *, partly: bool) -> None:
    """Wrap the objective in DDP or FSDP, before the optimizer is built. Raises ConfigError.

    partly  True if a step may leave parameters without a gradient
    """
    if world.size == 1:
        return
    refuse_uneven(loaded, world, built.learner.group)
    from electra_lab.parallel.wrap import Replicated, shard

    learner = built.learner
    learner.world = world
    if loaded.config.train.parallel != "fsdp":
        learner.module = Replicated(learner.objective, partly=partly)
        return
    if not isinstance(loaded.config.embedding.tie, str):
        reason = "fsdp cannot divide layers that two networks share. Use ddp, or another embedding.tie."
        raise loaded.problem(("train", "parallel"), reason)
    networks = list(built.networks.values())
    reason = "fsdp cannot divide reversible layers. Use ddp, or reversible: false."
    if any(backbone.reversible for backbone in backbones_of(networks)):
        raise loaded.problem(("train", "parallel"), reason)
    try:
        shard(learner.objective, layers_of(networks), device)
    except ValueError as error:
        raise loaded.problem(("train", "parallel"), f"fsdp cannot divide these networks: {error}") from error
