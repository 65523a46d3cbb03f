"""The composition root: the one file in which names become objects. Before it all is data, after it all is objects."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from electra_lab.config.load import Loaded
from electra_lab.config.schema import Component
from electra_lab.data.rows import Rows
from electra_lab.data.store import Store, open_store
from electra_lab.data.vocabulary import make_vocabulary, stand_in_vocabulary
from electra_lab.model.flops import network_flops
from electra_lab.model.initialise import initialise
from electra_lab.model.network import Network
from electra_lab.model.pair import EmbeddingSizes, make_pair
from electra_lab.training.device import Precision, choose_precision
from electra_lab.training.guards import GuardedMasking, GuardedSampler, refuse_backbone, rehearse
from electra_lab.training.loop import Plan, Run
from electra_lab.training.memory import peak_bytes, shapes_only
from electra_lab.training.optimizer import make_optimizer
from electra_lab.training.random import digest
from electra_lab.training.step import backward, first_losses
from registry import Batch, Vocabulary, backbones, corpora, masking_strategies, objectives, samplers, tokenizers
from registry.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from registry.contracts import Corpus


UNKNOWN_VOCABULARY = 30_522  # BERT's, which google-research/electra uses


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


@dataclass(frozen=True)
class Forecast:
    """What a run would need.

    vocabulary_size  None where the tokenizer's options do not say; then UNKNOWN_VOCABULARY stands in
    parameters       as in Experiment; `parts`: embeddings, projection, backbone, head of each network
    state_bytes      weights and the optimizer's two moments, in float32
    working_bytes    the peak of what a forward and backward pass over one micro-batch makes, gradients included;
                     None where a component needs numbers to go on
    """

    vocabulary_size: int | None
    parameters: dict[str, int]
    parts: dict[str, dict[str, int]]
    steps: int
    flops_per_step: int
    precision: Precision
    state_bytes: int
    working_bytes: int | None


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

    The networks are built without memory (meta device), to hear what their constructors refuse. Data that is not
    here is no error of the file: what a run would raise for it is returned.
    """
    absent = None
    try:
        _corpus(loaded)
    except DataError as error:
        absent = error
    with torch.device("meta"):
        _pair(loaded, vocabulary_size=8, pad_id=0)
    if loaded.config.train.flops is None:
        _steps(loaded, 0)
    return absent


def _corpus(loaded: Loaded) -> Corpus:
    component = loaded.config.corpus
    try:
        corpus: Corpus = corpora.get(component.type).component(**component.keywords())
    except DataError as error:
        raise loaded.problem(("corpus",), f"{component.type}: {error}", DataError) from None
    except ValueError as error:
        raise loaded.problem(("corpus",), f"{component.type} refuses this: {error}") from error
    return corpus


def forecast(loaded: Loaded, device: torch.device) -> Forecast:
    """What a run would need, from shapes alone: no corpus is read and no weight has memory. Raises ConfigError."""
    config, train = loaded.config, loaded.config.train
    size = getattr(config.tokenizer.options, "vocab_size", None)
    length, micro = config.data.sequence_length, train.micro_batch_size or train.batch_size
    with shapes_only():
        vocabulary = stand_in_vocabulary(size or UNKNOWN_VOCABULARY)
        pair = _pair(loaded, vocabulary.size, vocabulary.pad_id)
        objective = _objective(loaded, pair, vocabulary)
        flops_per_step = 3 * train.batch_size * _row_flops(*pair, length, config.masking)
        tokens = torch.full((micro, length), vocabulary.size - 1)
        batch = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.zeros_like(tokens), torch.arange(micro))
        precision = choose_precision(train.precision, device)
        working = peak_bytes(lambda: backward(first_losses(objective, batch, config.seed, precision)))
    return Forecast(
        vocabulary_size=size,
        parameters=_parameters(*pair),
        parts={name: _parts(network) for name, network in zip(("generator", "discriminator"), pair, strict=True)},
        steps=_steps(loaded, flops_per_step),
        flops_per_step=flops_per_step,
        precision=precision,
        state_bytes=sum(12 * p.numel() for p in objective.parameters()),
        working_bytes=working,
    )


def assemble(loaded: Loaded, store: Store, device: torch.device) -> Experiment:
    """Data and networks of an experiment. Raises ConfigError at the line that caused it."""
    config = loaded.config
    vocabulary = make_vocabulary(store.tokenizer, store.train, device)
    # Weights are drawn on the CPU, so that a seed means the same ones on every device.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(digest("weights", config.seed) % 2**63)
        generator, discriminator = _pair(loaded, vocabulary.size, vocabulary.pad_id)
        pair = nn.ModuleList([generator, discriminator])
        initialise(pair)
    length = config.data.sequence_length
    flops_per_step = 3 * config.train.batch_size * _row_flops(generator, discriminator, length, config.masking)
    pair.to(device)
    objective = _objective(loaded, (generator, discriminator), vocabulary)
    train = config.train
    optimizer = make_optimizer(objective, train.learning_rate, train.betas, train.epsilon, train.weight_decay)
    plan = Plan(
        seed=config.seed,
        steps=_steps(loaded, flops_per_step),
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
        flops_per_step=flops_per_step,
        examples=config.evaluate.examples,
    )
    rows = Rows(store.train, length, vocabulary)
    entry = objectives.get(config.objective.type)
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
        _parameters(generator, discriminator),
    )


def _objective(loaded: Loaded, pair: tuple[Network, Network], vocabulary: Vocabulary) -> nn.Module:
    config = loaded.config
    masking, sampler = masking_strategies.get(config.masking.type), samplers.get(config.sampler.type)
    masked = config.masking.keywords()
    made: nn.Module = objectives.get(config.objective.type).component(
        *pair,
        GuardedMasking(masking, partial(masking.component, **masked), masked["mask_prob"]),
        GuardedSampler(sampler, partial(sampler.component, **config.sampler.keywords())),
        vocabulary,
        **config.objective.keywords(),
    )
    return made


def _pair(loaded: Loaded, vocabulary_size: int, pad_id: int) -> tuple[Network, Network]:
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

    discriminator, generator = backbone("discriminator", config.discriminator), backbone("generator", config.generator)
    sizes = EmbeddingSizes(vocabulary_size, embedding.dim, embedding.max_length, embedding.dropout)
    try:
        return make_pair(*generator, *discriminator, sizes, embedding.tie, pad_id)
    except ValueError as error:
        raise loaded.problem(("embedding", "tie"), str(error)) from None


def _row_flops(generator: Network, discriminator: Network, length: int, masking: Component) -> int:
    slots = math.ceil(masking.keywords()["mask_prob"] * length - 1e-9)
    return network_flops(generator, length, slots) + network_flops(discriminator, length, 0)


def _steps(loaded: Loaded, flops_per_step: int) -> int:
    """The number of steps that the budget buys: whole ones, at least one."""
    train, length = loaded.config.train, loaded.config.data.sequence_length
    if train.steps is not None:
        return train.steps
    key, budget, price = "tokens", float(train.tokens or 0), train.batch_size * length
    if train.flops is not None:
        key, budget, price = "flops", train.flops, flops_per_step
    if budget < price:
        raise loaded.problem(("train", key), f"{budget:g} does not pay for one step, which costs {price:g}.")
    return int(budget // price)


def _parameters(generator: Network, discriminator: Network) -> dict[str, int]:
    """Parameters of each part; `shared` are counted in both networks and once in `total`."""

    def count(*modules: nn.Module) -> int:
        return sum(p.numel() for p in {p for m in modules for p in m.parameters()})

    total = count(generator, discriminator)
    parts = {"generator": count(generator), "discriminator": count(discriminator)}
    return {**parts, "shared": sum(parts.values()) - total, "total": total}


def _parts(network: Network) -> dict[str, int]:
    return {name: sum(p.numel() for p in part.parameters()) for name, part in network.named_children()}
