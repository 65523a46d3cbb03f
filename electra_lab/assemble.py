"""The composition root: the one file in which names become objects. Before it all is data, after it all is objects."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch import nn

from electra_lab.budget import Pair, budgeted_steps, count_parameters, largest_mask_prob, networks, number_at, price
from electra_lab.config.load import Loaded
from electra_lab.config.schema import Component
from electra_lab.config.schema import Experiment as Config
from electra_lab.config.source import read_file
from electra_lab.data.rows import Rows
from electra_lab.data.store import Store, open_store
from electra_lab.data.vocabulary import make_vocabulary, stand_in_vocabulary
from electra_lab.model.initialise import initialise
from electra_lab.model.network import Network
from electra_lab.model.pair import EmbeddingSizes, make_pair
from electra_lab.training.checkpoint import load_part
from electra_lab.training.device import choose_precision
from electra_lab.training.guards import GuardedMasking, GuardedSampler, refuse_backbone, rehearse
from electra_lab.training.loop import Plan, Run
from electra_lab.training.optimizer import make_optimizer
from electra_lab.training.random import digest
from electra_lab.training.scheduled import Number, Scheduled
from registry import (
    Vocabulary,
    backbones,
    corpora,
    generators,
    masking_strategies,
    objectives,
    samplers,
    tokenizers,
)
from registry.errors import DataError, LabError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from registry.contracts import Corpus


T = TypeVar("T")
Guards: TypeAlias = dict[str, GuardedMasking | GuardedSampler]  # by their section of the file


@dataclass(frozen=True)
class Experiment:
    """Everything that a run needs, built."""

    run: Run
    plan: Plan
    train: Rows
    held_out: Rows
    vocabulary: Vocabulary
    tokenizer: Tokenizer
    store: Store
    device: torch.device
    parameters: dict[str, int]
    study: Network  # the network under study
    frozen: str | None = None  # the checkpoint of another run that the generator was taken from


def open_data(loaded: Loaded, announce: Callable[[str], None]) -> Store:
    """The tokenised corpus of an experiment, from its store or made now. Raises DataError, ConfigError."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    config = loaded.config
    corpus = _corpus(loaded)
    # Only plug-ins that make the data: a changed sampler is no reason to tokenise anew.
    sources = {corpora.get(config.corpus.type).file, tokenizers.get(config.tokenizer.type).file}
    return open_store(
        config.data.store,
        corpus,
        partial(tokenizers.get(config.tokenizer.type).component, **config.tokenizer.keywords()),
        config.data.held_out,
        {
            "corpus_type": config.corpus.type,
            "tokenizer": config.tokenizer.dump(),
            "plugins": sorted(p.sha256 for p in loaded.plugins if p.file in sources),
        },
        announce,
    )


def check(loaded: Loaded) -> DataError | None:
    """All that can be found out without reading a corpus. Raises ConfigError.

    The networks are built without memory (meta device) where they can be, to hear what their constructors refuse. Data
    that is not here is no error of the file: what a run would raise for it is returned.
    """
    absent = None
    try:
        _corpus(loaded)
    except DataError as error:
        absent = error

    def build() -> None:
        vocabulary = stand_in_vocabulary(8)
        objective, guards = build_objective(loaded, build_pair(loaded, vocabulary), vocabulary)
        _schedule(loaded, objective, guards, 1)

    without_memory(torch.device("meta"), build)
    budgeted_steps(loaded, None)
    _refuse_biased_sampler(loaded)
    try:
        _refuse_another_run(loaded)
    except DataError as error:
        absent = error
    return absent


def _refuse_biased_sampler(loaded: Loaded) -> None:
    config = loaded.config
    if not config.needs.unbiased or config.sampler is None:
        return
    plain = config.sampler.type in ("gumbel", "temperature") and config.sampler.keywords()["temperature"] == 1.0
    if not plain or any(key.startswith("sampler.") for key in config.schedules):
        reason = f"{config.objective.type} needs draws from the generator's own softmax. Use {{type: temperature}}."
        raise loaded.problem(("sampler",), reason)


def without_memory(shapes: AbstractContextManager[Any], build: Callable[[], T]) -> T:
    """What `build` makes inside `shapes`, or outside it if it reads numbers, such as rates of its own, while it builds.

    What the lab itself refuses is raised at once: a network that is too large must not be built to be refused again.
    """
    try:
        with shapes:
            return build()
    except Exception as error:
        if isinstance(error, LabError) and not isinstance(error.__cause__, RuntimeError):
            raise
    return build()


def _frozen_run(config: Config) -> Path | None:
    return getattr(config.objective.options, config.needs.frozen) if config.needs.frozen else None


def _refuse_another_run(loaded: Loaded) -> None:
    """Where the generator is another run's: raises ConfigError if that read other data or was another network,
    DataError if it is not there."""
    run = _frozen_run(loaded.config)
    if run is None:
        return
    if not (run / "config.yaml").is_file() or not any((run / "checkpoints").glob("step-*")):
        place = ("objective", loaded.config.needs.frozen or "")
        raise loaded.problem(place, f"{run} is no run directory with a checkpoint.", DataError)
    theirs: Any = read_file(run / "config.yaml").plain()
    ours = loaded.config.model_dump(mode="json", exclude_none=True)
    theirs["generator"] = theirs.get("generator") or theirs.get("discriminator")
    same = ("corpus", "tokenizer", "generator", "data.held_out", "embedding.dim", "embedding.max_length")
    for key in same:
        loc: tuple[str, ...] = tuple(key.split("."))
        try:
            one, two = (reduce(getitem, loc, config) for config in (ours, theirs))
        except (KeyError, TypeError):
            place = ("objective", loaded.config.needs.frozen or "")
            raise loaded.problem(place, f"{run / 'config.yaml'} is no experiment of ours: it lacks {key}.") from None
        if one != two:
            cure = "Write the run's own section, or name another run."
            raise loaded.problem(loc, f"is {one}, but the run whose generator is taken, {run}, has {two}. {cure}")


def _refuse_other_data(loaded: Loaded, run: Path, store: Store) -> None:
    """The sections may be equal and the files not; then a token's number may mean another token."""
    try:
        theirs = json.loads((run / "provenance.json").read_text(encoding="utf-8"))["data"]["store"]
    except (OSError, ValueError, KeyError, TypeError):
        theirs = None
    if theirs != store.key:
        reason = f"{run} was trained on other data (token store {theirs}, here {store.key}), so its tokens differ."
        raise loaded.problem(("objective", loaded.config.needs.frozen or ""), reason, DataError)


def _corpus(loaded: Loaded) -> Corpus:
    component = loaded.config.corpus
    try:
        corpus: Corpus = corpora.get(component.type).component(**component.keywords())
    except DataError as error:
        raise loaded.problem(("corpus",), f"{component.type}: {error}", DataError) from None
    except ValueError as error:
        raise loaded.problem(("corpus",), f"{component.type} refuses this: {error}") from error
    return corpus


def assemble(loaded: Loaded, store: Store, device: torch.device, *, restored: bool = False) -> Experiment:
    """Data and networks of an experiment. Raises ConfigError at the line that caused it.

    restored  a checkpoint of its own will be loaded: another run's generator, which that holds too, is not asked for
    """
    config = loaded.config
    vocabulary = make_vocabulary(store.tokenizer, store.train, device)
    # Weights are drawn on the CPU, so that a seed means the same ones on every device.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(digest("weights", config.seed) % 2**63)
        pair = build_pair(loaded, vocabulary)
        initialise(nn.ModuleList(networks(pair).values()))
        objective, guards = build_objective(loaded, pair, vocabulary)
        for part in objective.children():
            if part not in pair:  # what the objective itself learns, such as a gate
                initialise(part)
    frozen = None
    if (run := _frozen_run(config)) is not None and not restored:
        assert pair[0] is not None
        _refuse_other_data(loaded, run, store)
        frozen = load_part(run / "checkpoints", ("generator", "discriminator"), pair[0])
    length, flops = config.data.sequence_length, price(pair, config)
    objective.to(device)
    train, steps = config.train, budgeted_steps(loaded, flops)
    _schedule(loaded, objective, guards, steps)
    optimizer = make_optimizer(objective, train.learning_rate, train.betas, train.epsilon, train.weight_decay)
    plan = Plan(
        seed=config.seed,
        steps=steps,
        batch_size=train.batch_size,
        micro_batch_size=train.micro_batch_size or train.batch_size,
        learning_rate=train.learning_rate,
        warmup_steps=train.warmup_steps,
        clip_norm=train.clip_norm,
        precision=choose_precision(train.precision, device),
        log_every=train.log_every,
        evaluate_every=config.evaluate.every,
        evaluate_batch_size=config.evaluate.batch_size,
        on_non_finite=train.on_non_finite,
        flops=flops,
        examples=config.evaluate.examples,
    )
    rows = Rows(store.train, length, vocabulary)
    entry = objectives.get(config.objective.type)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        rehearse(objective, entry, rows.training_batch(plan.seed, 0, 2, device), plan.seed, plan.precision)
    return Experiment(
        Run(objective, optimizer),
        plan,
        rows,
        Rows(store.held_out, length, vocabulary),
        vocabulary,
        store.tokenizer,
        store,
        device,
        count_parameters(pair),
        pair[1],
        frozen,
    )


def build_objective(loaded: Loaded, pair: Pair, vocabulary: Vocabulary) -> tuple[nn.Module, Guards]:
    """The objective, and what it was handed under `masking` and `sampler`."""
    config = loaded.config
    strategy = masking_strategies.get(config.masking.type)
    masking = GuardedMasking(strategy, largest_mask_prob(config), **config.masking.keywords())
    sampler, guards = None, Guards(masking=masking)
    if config.sampler is not None:
        sampler = guards["sampler"] = GuardedSampler(samplers.get(config.sampler.type), **config.sampler.keywords())
    made: nn.Module = objectives.get(config.objective.type).component(
        *pair,
        masking,
        sampler,
        vocabulary,
        **config.objective.keywords(),
    )
    return made, guards


def _schedule(loaded: Loaded, objective: nn.Module, guards: Guards, steps: int) -> None:
    """Let the numbers under `schedules` follow them."""
    numbers: list[Number] = []
    for key, component in loaded.config.schedules.items():
        section, option = key.split(".")
        if section == "objective":
            if not isinstance(getattr(objective, option, None), float):
                name = loaded.config.objective.type
                raise loaded.problem(("schedules", key), f"{name} keeps no number of that name, so it cannot change.")
            put: Callable[[torch.Tensor], None] = partial(setattr, objective, option)
        else:
            put = partial(guards[section].options.__setitem__, option)
        numbers.append(Number(number_at(component), put))
    if numbers:
        objective.schedules = Scheduled(numbers, steps)


def build_pair(loaded: Loaded, vocabulary: Vocabulary) -> Pair:
    config = loaded.config
    embedding = config.embedding

    def backbone(key: str, component: Component) -> tuple[nn.Module, int]:
        sizes = component.sizes
        assert sizes is not None
        entry = backbones.get(component.type)
        try:
            module: nn.Module = entry.component(
                sizes.dim, sizes.depth, sizes.heads, embedding.max_length, **component.keywords()
            )
        except (
            ValueError,
            AssertionError,
            RuntimeError,
        ) as error:  # the libraries refuse with assert, torch by the last
            raise loaded.problem((key,), f"{component.type} refuses this: {error}") from error
        refuse_backbone(module, entry)
        length, multiple = config.data.sequence_length, int(module.length_multiple)  # type: ignore[arg-type]
        padded = length + -length % multiple
        if padded > embedding.max_length:
            raise loaded.problem(
                ("data", "sequence_length"),
                f"{component.type} takes multiples of {multiple}; {length} would be padded to {padded}, which is above "
                f"embedding.max_length {embedding.max_length}. Raise max_length to {padded} or shorten the sequence.",
            )
        return module, sizes.dim

    discriminator = backbone("discriminator", config.discriminator)
    if embedding.tie == "all" and config.generator and config.generator.dump() != config.discriminator.dump():
        reason = (
            "all shares the whole encoder, but generator and discriminator differ. Write generator: {scale: 1.0}, with "
            "no option of its own, or use tie: embeddings."
        )
        raise loaded.problem(("embedding", "tie"), reason)
    fixed = config.generator is not None and config.generator.sizes is None
    generator, width = (None, 0) if config.generator is None or fixed else backbone("generator", config.generator)
    sizes = EmbeddingSizes(vocabulary.size, embedding.dim, embedding.max_length, embedding.dropout)
    try:
        pair = make_pair(generator, width, *discriminator, sizes, embedding.tie, vocabulary.pad_id, config.needs.head)
    except ValueError as error:
        raise loaded.problem(("embedding", "tie"), str(error)) from None
    if config.generator is not None and fixed:
        made: nn.Module = generators.get(config.generator.type).component(vocabulary, **config.generator.keywords())
        return made, pair[1]
    return pair
