"""The one builder of networks, objectives and optimizers, for runs, forecasts, trial steps and checks."""

from collections.abc import Callable, Mapping, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from electra_lab.assembly.budget import budgeted_steps, largest_mask_prob, rows_at_once, training_flops
from electra_lab.checks.guards import refuse_backbone, try_optimizer
from electra_lab.config.finetune import FinetuningConfig
from electra_lab.config.load import Loaded
from electra_lab.config.schema import GENERATOR_RATE, ExperimentConfig
from electra_lab.config.sections import rate_of, value_of
from electra_lab.config.source import Loc
from electra_lab.data.vocabulary import stand_in_vocabulary
from electra_lab.model.flops import MATRIX_PRODUCTS, PAPER
from electra_lab.model.network import Network, backbones_of, initialise
from electra_lab.model.pair import CURE_OF_ALL, EmbeddingSizes, Tie, make_pair, own_head
from electra_lab.planning.memory import without_numbers
from electra_lab.training.device import layers_of, recompute
from electra_lab.training.execution import Precision
from electra_lab.training.loop import Settings
from electra_lab.training.random import digest
from electra_lab.training.scheduled import Configured, FixedSlots, Number, Schedules
from electra_lab.training.step import Learner, by_network
from registry import (
    Backbone,
    Entry,
    Flops,
    Vocabulary,
    backbones,
    generators,
    heads,
    masking_strategies,
    objectives,
    optimizers,
    packings,
    samplers,
    tokenizers,
    using,
)
from registry.component import Component
from registry.errors import DataError, LabError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BERT_VOCABULARY = 30_522  # google-research/electra's too; assumed where a tokenizer's options set no size


@dataclass(frozen=True)
class Built:
    """The objective of an experiment with its networks, which have no memory in an outline."""

    learner: Learner
    networks: dict[str, nn.Module]  # `generator`, if there is one, and `discriminator`
    model: Network
    flops: Flops  # FLOPs of matrix products
    paper_flops: Flops  # FLOPs as Clark et al. (2020) count
    steps: int | None  # None if `train.epochs` decides and the rows are not counted yet
    vocabulary: Vocabulary
    brought: Set[nn.Parameter]  # weights of components, which the lab does not initialize

    def own_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters of the objective that no network has, such as those of a gate."""
        inside = set(nn.ModuleDict(self.networks).parameters())
        named = self.learner.objective.named_parameters()
        return {f"objective.{name}": parameter for name, parameter in named if parameter not in inside}


def sketch(loaded: Loaded) -> Built:
    """Build an experiment from shapes, for its sizes and the refusals of its components. Raises ConfigError."""
    try_plugged_in_optimizer(loaded)
    return outline(loaded, vocabulary_or_bert(loaded))


def outline(loaded: Loaded, vocabulary: Vocabulary, place: AbstractContextManager[Any] | None = None) -> Built:
    """Build networks and objective from shapes, without memory. Raises ConfigError.

    Components that read numbers while they are built, such as the rates of layers, are built with memory.

    place  context of the construction: `shapes_only()` to compute with the networks; by default they cannot compute
    """
    try:
        with place or without_numbers():
            return build(loaded, vocabulary)
    except Exception as error:
        # Other refusals are final, so that a network that is too large is not built with memory to be refused again.
        if isinstance(error, LabError) and not isinstance(error.__cause__, RuntimeError):
            raise
    with using(*used(loaded)):
        return build(loaded, vocabulary)


def used(loaded: Loaded) -> list[Entry[Any]]:
    """Return the components of a step, dependencies first."""
    config, chosen = loaded.config, loaded.config.generator
    main: list[Entry[Any]] = [backbones.get(config.discriminator.type), objectives.get(config.objective.type)]
    if chosen:
        main.insert(0, (backbones if chosen.sizes else generators).get(chosen.type))
    of_heads = [heads.get(name) for name, _ in config.needs.all_heads]
    return [packings.get(config.packing.type), *of_heads, *main]


def vocabulary_size(loaded: Loaded) -> int | None:
    """Return the largest possible vocabulary, None if the tokenizer's options set none. Raises ConfigError."""
    if tokenizer := untrained_tokenizer(loaded):
        return tokenizer.get_vocab_size()
    return getattr(loaded.config.tokenizer.options, "vocab_size", None)


def vocabulary_or_bert(loaded: Loaded, device: torch.device | None = None) -> Vocabulary:
    """Return a vocabulary of the largest possible size, or of BERT's if the tokenizer has no limit."""
    return stand_in_vocabulary(vocabulary_size(loaded) or BERT_VOCABULARY, device)


def untrained_tokenizer(loaded: Loaded) -> "Tokenizer | None":
    """Return the tokenizer if it is one that needs no training, otherwise None. Raises ConfigError."""
    chosen = loaded.config.tokenizer
    entry = tokenizers.get(chosen.type)
    if entry.declared["trained"]:
        return None
    try:
        return entry.component((), **chosen.keywords())
    except (DataError, ValueError) as error:
        raise loaded.problem(("tokenizer",), f"{chosen.type} refuses this: {error}") from error


def build(loaded: Loaded, vocabulary: Vocabulary, *, seed: int | None = None) -> Built:
    """Build networks and objective. Raises ConfigError at the line that caused it.

    seed  seed of the initial weights; each is drawn by the seed, its network, name and shape, so that parts which two
          experiments share start equal. Components that bring weights keep them. Components that draw numbers while
          they are built use torch's global generator, which is seeded for each network; the caller restores it
    """
    config = loaded.config
    if config.data.group_by_length and not hasattr(packings.get(config.packing.type).component, "lengths"):
        reason = f"rows of {config.packing.type} are all full. Use packing: {{type: documents}}, or remove this key."
        raise loaded.problem(("data", "group_by_length"), reason)
    # Networks, with whatever their components draw
    generator, model = _pair(loaded, vocabulary, seed)
    networks: dict[str, nn.Module] = {"discriminator": model}
    if generator is not None:
        networks = {"generator": generator, **networks}
    # Initial weights. Shared parts are the discriminator's, so that they do not depend on the generator.
    parts = nn.ModuleDict({"discriminator": model, **networks})
    brought = brought_by(backbones.get(config.discriminator.type), model.backbone)
    if chosen := config.generator:
        guessing: Any = generator  # around a backbone, or a component itself
        source = (backbones if chosen.sizes else generators).get(chosen.type)
        brought |= brought_by(source, guessing.backbone if chosen.sizes else guessing)
    for network in networks.values():
        if isinstance(network, Network):
            for name, head in network.heads.items():
                kind, _ = own_head(name, network.backbone)
                brought |= brought_by(heads.get(kind), head)
    if seed is not None:
        initialise(parts, partial(weights_from, seed), config.init.distribution, brought)
    # Objective, with the components that it calls
    strategy = masking_strategies.get(config.masking.type)
    masking = FixedSlots(strategy, largest_mask_prob(config), **config.masking.keywords())
    sampler = None
    if config.sampler is not None:
        sampler = Configured(samplers.get(config.sampler.type), **config.sampler.keywords())
    entry: Entry[Any] = objectives.get(config.objective.type)
    versions = {parameter: parameter._version for parameter in parts.parameters()}
    _seed(seed, "objective")
    try:
        objective = entry.component(generator, model, masking, sampler, vocabulary, **config.objective.keywords())
    except ValueError as error:
        raise loaded.problem(("objective",), f"{config.objective.type} refuses this: {error}") from error
    # torch counts the changes of a tensor: the objective brings the weights that it has filled.
    brought |= {parameter for parameter, version in versions.items() if parameter._version != version}
    brought |= brought_by(entry, objective) - versions.keys()
    if seed is not None:
        others = {name: part for name, part in objective.named_children() if part not in networks.values()}
        layers = nn.ModuleDict({"objective": nn.ModuleDict(others)})  # of the objective itself, such as a gate
        initialise(layers, partial(weights_from, seed), config.init.distribution, brought | versions.keys())
    _refuse_one_learner(loaded, networks)
    _refuse_partial_groups(loaded, objective.group)
    if config.train.activation_checkpointing:
        if any(backbone.reversible for backbone in backbones_of(networks.values())):
            reason = "reversible layers already keep no activations. Remove this key, or write reversible: false."
            raise loaded.problem(("train", "activation_checkpointing"), reason)
        for layer in layers_of(networks.values()):
            recompute(layer)
    # Budget, and the schedules whose length it decides
    flops = training_flops(objective, networks, config, MATRIX_PRODUCTS)
    paper_flops = training_flops(objective, networks, config, PAPER)
    steps = budgeted_steps(loaded, flops, paper_flops)
    learner = Learner(objective)
    learner.components = [component for component in (masking, sampler) if component is not None]
    numbers = []
    for key, schedule in config.schedules.items():
        if key == "learning_rate":
            continue
        section, option = key.split(".")
        if section == "objective":
            if not isinstance(getattr(objective, option, None), float):
                reason = f"cannot be scheduled: {config.objective.type} keeps no number of that name."
                raise loaded.problem(("schedules", key), reason)
            put: Callable[[torch.Tensor], None] = partial(setattr, objective, option)
        elif section == "train":
            put = partial(setattr, learner, option)
        else:
            component = masking if section == "masking" else sampler
            assert component is not None
            put = partial(component.options.__setitem__, option)
        numbers.append(Number(value_of(schedule), put, key))
    learner.schedules = Schedules(numbers, steps or 1)
    return Built(learner, networks, model, flops, paper_flops, steps, vocabulary, brought)


def _refuse_one_learner(loaded: Loaded, networks: Mapping[str, nn.Module]) -> None:
    """Raise ConfigError for settings by network if only one network learns."""
    train, scheduled = loaded.config.train, GENERATOR_RATE in loaded.config.schedules
    settings: list[tuple[Loc, bool]] = [
        (("train", "generator_rate"), train.generator_rate is not None),
        (("train", "clip"), train.clip is not None),
        (("schedules", GENERATOR_RATE), scheduled),
    ]
    for key, is_set in settings:
        for network in ("generator", "discriminator"):
            parameters = networks[network].parameters() if network in networks else ()
            if is_set and not any(parameter.requires_grad for parameter in parameters):
                reason = f"needs two trained networks, but no {network} is trained. Remove this key."
                raise loaded.problem(key, reason)


def _refuse_partial_groups(loaded: Loaded, group: int) -> None:
    """Raise ConfigError if a batch, or a part that is read at a time, is not whole groups of rows."""
    train, warmup = loaded.config.train, loaded.config.train.batch_warmup
    numbers = {
        ("train", "batch_size"): train.batch_size,
        ("train", "micro_batch_size"): train.micro_batch_size,
        ("train", "batch_warmup", "start"): warmup and warmup.start,
        ("train", "batch_warmup", "increment"): warmup and warmup.increment,
        ("evaluate", "batch_size"): loaded.config.evaluate.batch_size,
    }
    for key, rows in numbers.items():
        if isinstance(rows, int) and rows % group:
            reason = f"{rows} rows are not whole groups of {group} (objective.group). Use a multiple of {group}."
            raise loaded.problem(key, reason)


def try_plugged_in_optimizer(loaded: Loaded) -> None:
    """Try the optimizer of a plug-in on small parameters; built-in ones are tested. Raises ConfigError.

    A step of an optimizer imports torch's compiler, which takes longer than everything else that is checked.
    """
    chosen, entry = loaded.config.optimizer, optimizers.get(loaded.config.optimizer.type)
    if entry.built_in:
        return
    try:
        with using(entry):
            try_optimizer(entry, loaded.config.train.learning_rate, chosen.keywords())
    except ValueError as error:
        raise loaded.problem(("optimizer",), f"{chosen.type} refuses this: {error}") from error


def make_optimizer(loaded: Loaded[ExperimentConfig], built: Built) -> Optimizer:
    """Build the optimizer of all trainable parameters, each shared one once."""
    train, scheduled = loaded.config.train, GENERATOR_RATE in loaded.config.schedules
    optimizer = optimizer_of(loaded.config.optimizer, train.learning_rate, built.learner.objective)
    if train.clip or train.generator_rate is not None or scheduled:
        rate = 1.0 if train.generator_rate is None or scheduled else train.generator_rate
        by_network(optimizer, set(built.networks["generator"].parameters()), rate, clip_each=bool(train.clip))
    return optimizer


def optimizer_of(chosen: Component, learning_rate: float, objective: nn.Module) -> Optimizer:
    """Build an optimizer of the trainable parameters of a module."""
    learning = [(name, parameter) for name, parameter in objective.named_parameters() if parameter.requires_grad]
    component: Any = optimizers.get(chosen.type).component
    optimizer: Optimizer = component(learning, learning_rate, **chosen.keywords())
    return optimizer


def loop_settings(
    config: ExperimentConfig | FinetuningConfig,
    *,
    seed: int,
    steps: int,
    flops: Flops,
    examples: int,
    precision: Precision,
) -> Settings:
    """Return the numbers of a config that the loop needs."""
    train = config.train
    return Settings(
        seed=seed,
        steps=steps,
        batch_size=train.batch_size,
        micro_batch_size=rows_at_once(train.batch_size, train.micro_batch_size),
        learning_rate=train.learning_rate,
        rate=rate_of(config.schedules["learning_rate"]),
        clip_norm=train.clip_norm,
        precision=precision,
        log_every=train.log_every,
        evaluate_every=config.evaluate.every,
        evaluate_batch_size=config.evaluate.batch_size,
        on_non_finite=train.on_non_finite,
        skip_limit=getattr(train, "skip_limit", None),
        spike=getattr(train, "spike", None),
        flops=flops,
        examples=examples,
        warmup=flops.batches if getattr(train, "batch_warmup", None) else None,
    )


def weights_from(seed: int, name: str, shape: torch.Size) -> torch.Generator:
    """Return the random generator of a weight."""
    return torch.Generator().manual_seed(digest("weights", seed, name, tuple(shape)) % 2**63)


def brought_by(entry: Entry[Any], module: nn.Module) -> set[nn.Parameter]:
    """Return the parameters of a component that the lab must not initialize: all, or those frozen if it asks."""
    asks = entry.declared["initialized_by_lab"]
    return {parameter for parameter in module.parameters() if not asks or not parameter.requires_grad}


def _seed(seed: int | None, role: str) -> None:
    """Seed torch's global generator of the CPU for the draws of a component while it is built."""
    if seed is not None:
        torch.default_generator.manual_seed(digest("weights", seed, role) % 2**63)


def _pair(loaded: Loaded, vocabulary: Vocabulary, seed: int | None) -> tuple[nn.Module | None, Network]:
    config, embedding, chosen = loaded.config, loaded.config.embedding, loaded.config.generator
    _seed(seed, "discriminator")
    discriminator = _backbone(loaded, "discriminator", config.discriminator)
    if embedding.tie == "all" and chosen and chosen.dump() != config.discriminator.dump():
        reason = "all shares the whole encoder, but generator and discriminator differ."
        raise loaded.problem(("embedding", "tie"), f"{reason} {CURE_OF_ALL}")
    tie: Tie = embedding.tie if isinstance(embedding.tie, str) else embedding.tie.layers
    if chosen and isinstance(tie, int) and not _differ_in_depth_alone(chosen, config.discriminator):
        reason = "layers can be shared by networks that differ in depth alone."
        raise loaded.problem(("embedding", "tie"), f"{reason} Write generator: {{scale: 1.0, depth: ...}}.")
    _seed(seed, "generator")
    generator, width = _backbone(loaded, "generator", chosen) if chosen and chosen.sizes else (None, 0)
    sizes = EmbeddingSizes(vocabulary.size, embedding.dim, embedding.max_length, embedding.dropout)
    _seed(seed, "heads")
    try:
        pair = make_pair(
            generator, width, *discriminator, sizes, tie, vocabulary.pad_id,
            config.needs.heads, config.needs.generator_heads, vocabulary,
        )  # fmt: skip
    except ValueError as error:
        raise loaded.problem(("embedding", "tie"), str(error)) from None
    if chosen and not chosen.sizes:
        _seed(seed, "generator")
        fixed: Any = generators.get(chosen.type).component(vocabulary, **chosen.keywords())
        return fixed, pair[1]
    return pair


def _differ_in_depth_alone(generator: Component | None, discriminator: Component) -> bool:
    if generator is None or generator.sizes is None:
        return False
    return {**generator.dump(), "depth": 0} == {**discriminator.dump(), "depth": 0}


def _refuse_documents(loaded: Loaded, name: str, module: Any) -> None:
    """Raise ConfigError if rows carry documents and the backbone cannot separate them."""
    separates = loaded.config.packing.declared(packings, "separates_documents")
    if separates and not module.separates_documents:
        reason = (
            f"this {name} cannot separate documents. Use bert, or transformer without local_heads, or attention: full."
        )
        raise loaded.problem(("packing", "attention"), reason)


def _backbone(loaded: Loaded, key: str, component: Component) -> tuple[Backbone, int]:
    config, sizes, entry = loaded.config, component.sizes, backbones.get(component.type)
    assert sizes is not None
    longest = config.embedding.max_length
    try:
        module: Any = entry.component(sizes.dim, sizes.depth, sizes.heads, longest, **component.keywords())
    except (ValueError, AssertionError, RuntimeError) as error:  # libraries refuse by assert, torch by RuntimeError
        raise loaded.problem((key,), f"{component.type} refuses this: {error}") from error
    refuse_backbone(module, entry)
    _refuse_documents(loaded, component.type, module)
    length, multiple = config.data.sequence_length, module.length_multiple
    padded = length + -length % multiple
    if padded > longest:
        raise loaded.problem(
            ("data", "sequence_length"),
            f"{component.type} takes multiples of {multiple}; {length} would be padded to {padded}, which is above "
            f"embedding.max_length {longest}. Raise max_length to {padded} or shorten the sequence.",
        )
    return module, sizes.dim
