"""From a validated config to an experiment that can be trained."""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch

from electra_lab.assembly.budget import count_parameters, with_steps
from electra_lab.assembly.build import Built, build, loop_settings, make_optimizer, sketch, untrained_tokenizer, used
from electra_lab.assembly.choices import Choices, Scale, decide
from electra_lab.assembly.initial_weights import load_initial_weights, origins, refuse_initial_weights
from electra_lab.assembly.needs import rows_at_a_time
from electra_lab.assembly.parallelize import parallelize, refuse_uneven
from electra_lab.assembly.parent_runs import evaluates_at_start, load_parents, refuse_other_parents
from electra_lab.assembly.rows import allocate_memory, pack, random_rows
from electra_lab.assembly.trackers import absent_tracker
from electra_lab.checks.guards import rehearse
from electra_lab.config.load import Loaded
from electra_lab.config.sections import milestone_name
from electra_lab.data.build import MANIFEST, Recipe
from electra_lab.data.raw_documents import Progress
from electra_lab.data.rows import Rows
from electra_lab.data.splits import Unsplittable
from electra_lab.data.store import FORMAT, Store, is_store, key_of, load_store, open_store, read_manifest
from electra_lab.data.vocabulary import make_vocabulary, stand_in_vocabulary
from electra_lab.data.words import steps_of_words, words_of_rows
from electra_lab.metrics import accumulator_of
from electra_lab.model.attention import use_kernel
from electra_lab.model.network import Network
from electra_lab.parallel.world import ALONE, World
from electra_lab.planning.forecast import SMALL
from electra_lab.storage.best import AUTO, OFF
from electra_lab.storage.provenance import Environment, Start
from electra_lab.training.compilation import compile_modules
from electra_lab.training.device import Precision
from electra_lab.training.evaluation import Accumulate
from electra_lab.training.loop import Run, Settings
from registry import Batches, Corpus, Launcher, Vocabulary, corpora, launchers, objectives, tokenizers, using
from registry.component import entries_of
from registry.errors import DataError, LabError, did_you_mean


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
    accumulate: Accumulate  # makes the accumulator of the objective's metrics
    parents: dict[str, str]  # by network, the checkpoint of another run that its weights come from
    init: dict[str, Start]  # by network, the weights that `init` named
    weights: dict[str, str]  # by part, where they come from; not known if a checkpoint will be loaded
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
    looks: list[Callable[[], object]] = [
        lambda: _try_plugins(loaded, built),
        lambda: None if is_store(loaded.config.data.store) else open_corpus(loaded),
        lambda: refuse_other_parents(loaded, built.learner.objective),
        lambda: refuse_initial_weights(loaded, built),
        lambda: _refuse_unknown_metric(
            loaded, accumulator_of(built.learner.objective, stand_in_vocabulary(built.vocabulary.size))
        ),
    ]
    for look in looks:
        try:
            with using(objectives.get(loaded.config.objective.type)):
                look()
        except DataError as error:
            absent = absent or error
    return absent or absent_tracker(loaded)


def open_data(
    loaded: Loaded,
    announce: Callable[[str], None],
    progress: Progress = lambda *_: None,
    *,
    launcher: Launcher | None = None,
    rebuild: bool = False,
) -> Store:
    """Open the tokenized corpus of an experiment, and build its store if needed. Raises DataError, ConfigError.

    launcher  encodes the shards; by default processes on this machine, if threads are slower
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    folder = loaded.config.data.store
    if is_store(folder):
        if rebuild:
            reason = f"{folder} is a finished token store, which cannot be rebuilt. Name the folder around it."
            raise loaded.problem(("data", "store"), reason)
        return _given_store(loaded, folder, announce)
    try:
        with using(tokenizers.get(loaded.config.tokenizer.type), corpora.get(loaded.config.corpus.type)):
            recipe = recipe_of(loaded, open_corpus(loaded), launcher)
            return open_store(folder, recipe, announce, progress, rebuild=rebuild)
    except Unsplittable as error:
        raise loaded.problem(error.key, str(error), DataError) from None


def recipe_of(loaded: Loaded, corpus: Corpus | None, launcher: Launcher | None = None) -> Recipe:
    """Return the recipe of an experiment's store. Raises DataError, ConfigError."""
    config, data = loaded.config, loaded.config.data
    entry = tokenizers.get(config.tokenizer.type)
    # Only the plug-ins that produce data: a changed sampler must not cause tokenizing again.
    sources = {entry.file, *(source.file for source in entries_of(corpora, config.corpus))}
    tokenizer: Any = {"type": config.tokenizer.type, "options": config.tokenizer.dump()}
    if made := untrained_tokenizer(loaded):  # its files may change, or lie elsewhere
        tokenizer = {"sha256": hashlib.sha256(made.to_str().encode()).hexdigest()}
    else:
        tokenizer["characters"] = data.tokenizer_characters
    fingerprint = corpus.fingerprint() if corpus else ""
    if not isinstance(fingerprint, str):
        raise TypeError(f"fingerprint() returned {fingerprint!r:.80}, must be a string.")
    identity = {
        "format": FORMAT,
        "corpus": {"type": config.corpus.type, "fingerprint": fingerprint},
        "held_out": data.held_out,
        "overlap": data.overlap,
        "tokenizer": tokenizer,
        "plugins": sorted(plugin.sha256 for plugin in loaded.plugins if plugin.file in sources),
        "tokenizers": version("tokenizers"),
    }
    if data.split is not None:  # the stores of earlier releases are by key
        identity["split"] = data.split
    return Recipe(
        corpus=cast("Corpus", corpus),
        fingerprint=fingerprint,
        train_tokenizer=partial(entry.component, **config.tokenizer.keywords()),
        held_out=data.held_out,
        overlap=data.overlap,
        tokenizer_characters=data.tokenizer_characters,
        identity=identity,
        launcher=(lambda _: launcher) if launcher else _processes,
        order=data.split,
    )


def prepared(loaded: Loaded) -> Store | None:
    """Open the token store of an experiment, if it exists, without verifying it or writing anything.

    The corpus is hashed only if there is a store that could be its own. Raises DataError, ConfigError.
    """
    root = loaded.config.data.store
    if is_store(root):
        return _given_store(loaded, root, verify=False)
    recipe, found = _without_fingerprint(recipe_of(loaded, None).identity), False
    for file in root.glob(f"*/{MANIFEST}"):
        with suppress(DataError):  # a damaged store of others
            found = found or _without_fingerprint(read_manifest(file.parent).identity) == recipe
    folder = root / key_of(recipe_of(loaded, open_corpus(loaded)).identity) if found else root
    return load_store(folder, verify=False) if is_store(folder) else None


def _processes(shards: int) -> Launcher | None:
    """Return a launcher with one process per core, None if threads of this process are as fast."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if min(shards, cores) < 2 or not hasattr(os, "fork"):  # the local launcher needs POSIX
        return None
    made: Launcher = launchers.get("local").component(workers=min(shards, cores), threads=1, gpus=0)
    return made


def _given_store(
    loaded: Loaded, folder: Path, announce: Callable[[str], None] = lambda _: None, *, verify: bool = True
) -> Store:
    """Open the store that `data.store` names, without its corpus. Raises ConfigError if its settings differ."""
    store = load_store(folder, "Copy it again, or name another folder.", verify=verify)
    mine = _without_fingerprint(recipe_of(loaded, None).identity)
    theirs = _without_fingerprint(store.manifest.identity)
    for key in ("format", "corpus", "held_out", "split", "overlap", "tokenizer"):
        if mine.get(key) != theirs.get(key):
            raise loaded.problem(
                ("data", "store"),
                f"the token store {folder} was made with another {key} ({theirs.get(key)}, here {mine.get(key)}). Use "
                "the same value, or name another folder.",
            )
    announce(f"using the token store {folder} of a corpus {theirs['corpus']['type']}, which is not read")
    return store


def _without_fingerprint(identity: dict[str, Any]) -> dict[str, Any]:
    corpus = identity.get("corpus")
    return identity | ({"corpus": {"type": corpus.get("type")}} if isinstance(corpus, dict) else {})


def open_corpus(loaded: Loaded) -> Corpus:
    """Raises DataError if the text is not there, ConfigError if the component refuses its options."""
    component = loaded.config.corpus
    try:
        return corpora.get(component.type).component(**component.keywords())
    except DataError as error:
        raise loaded.problem(("corpus",), f"{component.type}: {error}", DataError) from None
    except ValueError as error:
        raise loaded.problem(("corpus",), f"{component.type} refuses this: {error}") from error


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

    restored  a checkpoint of the run itself will be loaded, so that weights from elsewhere are not needed
    world     the processes that train it
    began     the environment of a run that is resumed on the same device
    scale     the numbers that the rules of `auto` depend on; by default the experiment's own
    """
    refuse_uneven(loaded, world)
    vocabulary = make_vocabulary(store.tokenizer, torch.from_numpy(store.counts), device)
    splits = (store.train, store.validation, store.test)
    rows, validation, test = (pack(loaded, split, vocabulary) for split in splits)
    loaded = with_steps(loaded, len(rows))
    config = loaded.config
    # Weights are drawn on the CPU, so that a seed means the same weights on every device.
    with torch.random.fork_rng(devices=[]):
        built = build(loaded, vocabulary, seed=config.seed)
    assert built.steps is not None
    parents = {} if restored else load_parents(loaded, built, store)
    init = {} if restored else load_initial_weights(loaded, built, store.tokenizer)
    weights = {} if restored else origins(built, parents, init)
    objective = built.learner.objective.to(device)
    allocate_memory(loaded, objective, len(rows), device)
    choices = decide(config.train, scale or Scale.of(loaded, built.flops.total(built.steps)), device, world, began)
    if not use_kernel(choices.attention, objective):  # no backbone has exact attention
        choices.reasons.pop("attention", None)
    accumulate = accumulator_of(objective, vocabulary)
    with using(objectives.get(config.objective.type)):
        _refuse_unknown_metric(loaded, accumulate)
    reached = _rehearsed(loaded, built, rows, accumulate, device, choices.precision)
    settings = loop_settings(
        config, seed=config.seed, steps=built.steps, flops=built.flops, examples=config.evaluate.examples,
        precision=choices.precision,
    )  # fmt: skip
    settings = replace(settings, evaluate_at_start=evaluates_at_start(config, objective))
    if config.train.micro_batch_size == "auto":
        known = began.micro_batch_size if began is not None and began.processes == world.size else None
        size = known or rows_at_a_time(loaded, built, rows, device, world, choices.precision)
        settings = replace(settings, micro_batch_size=size)
    compile_modules(choices.compile, objective, built.networks.values())
    # An objective that changes with the step may leave out other parameters later.
    parallelize(loaded, built, world, device, partly=not reached or hasattr(objective, "at_step"))
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
        parents=parents,
        init=init,
        weights=weights,
        paper_flops=built.paper_flops.total(built.steps),
        choices=choices,
        milestones=_milestones(loaded, rows, store, vocabulary, settings.steps),
    )


def _milestones(loaded: Loaded, rows: Rows, store: Store, vocabulary: Vocabulary, steps: int) -> dict[str, int]:
    """Return the step of each milestone by its name. Raises ConfigError for one that is never reached, DataError."""
    config, wanted = loaded.config, loaded.config.checkpoint.milestones
    if wanted is None:
        return {}
    found = {"step-0": 0, **config.milestones_of_tokens}
    if wanted.words is None:
        return found
    words = words_of_rows(rows, store.train, vocabulary)
    reached, end = steps_of_words(wanted.words, words, rows, config.seed, config.train.batches, steps)
    for number, step in zip(wanted.words, reached, strict=True):
        if step > steps:
            reason = f"{number:,.0f} words are never reached: training ends after {end:,.0f}."
            raise loaded.problem(("checkpoint", "milestones", "words"), reason)
        found[milestone_name("words", number)] = step
    return found


def _rehearsed(
    loaded: Loaded, built: Built, rows: Rows, accumulate: Accumulate, device: torch.device, precision: Precision
) -> bool:
    """Try every component on two rows; returns whether every parameter that learns got a gradient."""
    config, entry = loaded.config, objectives.get(loaded.config.objective.type)
    with using(*used(loaded)):
        batch = rows.training_batch(config.seed, 0, 2, device)
        next(rows.in_order(2, device))
        return rehearse(built.learner, entry, batch, config.seed, precision, accumulate)


def _try_plugins(loaded: Loaded, built: Built) -> None:
    """Try the components of an experiment with plug-ins on random text, unless it is too large to be tried here.

    built  its sketch
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
        # A plug-in may know the size of the vocabulary, which is only guessed before the tokenizer is trained.


def _refuse_unknown_metric(loaded: Loaded, accumulate: Accumulate) -> None:
    """Raise ConfigError if checkpoint.best names a metric that the objective does not have."""
    best = loaded.config.checkpoint.best
    if best in (AUTO, OFF) or best in (known := accumulate(()).metrics):
        return
    hint = did_you_mean(best, [AUTO, OFF, *known])
    raise loaded.problem(("checkpoint", "best"), f"the objective has no metric {best!r}.{hint}")
