"""From a trained model to its networks, built and filled."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from pydantic import ValidationError
from torch import nn

from electra_lab.assembly.build import build, weights_from
from electra_lab.assembly.initial_weights import DRAWN, origins
from electra_lab.config.finetune import FinetuningConfig
from electra_lab.config.load import Loaded
from electra_lab.config.schema import Embedding
from electra_lab.config.source import mark_at
from electra_lab.model.network import Network, initialise
from electra_lab.model.pair import EmbeddingSizes, make_pair
from electra_lab.model.weights import account_for, fill, own_tensors, with_all_names
from electra_lab.pretrained.opening import open_model, run_config
from electra_lab.pretrained.trained_model import Part, TrainedModel
from electra_lab.storage.provenance import Start
from registry import Generator, Vocabulary, backbones, generators
from registry.component import Sizes
from registry.errors import ConfigError, LabError, UnknownName
from registry.signature import validate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokenizers import Tokenizer


@dataclass(eq=False)
class OpenedModel:
    """A trained model with its networks, built, filled and in eval mode.

    model       description that its files give
    networks    networks by name, `discriminator` and `generator`; one or both
    vocabulary  vocabulary of its tokenizer
    weights     origin of the weights, by part of a network
    fixed       generator that learns nothing, such as word frequencies
    """

    model: TrainedModel
    networks: dict[str, Network]
    vocabulary: Vocabulary
    weights: dict[str, str]
    fixed: Any = None

    @property
    def name(self) -> str:
        """The path or the name that it was opened by."""
        return self.model.source

    @property
    def device(self) -> torch.device:
        return self.vocabulary.is_special.device

    @property
    def discriminator(self) -> Network | None:
        return self.networks.get("discriminator")

    @property
    def generator(self) -> Generator | None:
        generator: Generator | None = self.networks.get("generator") or self.fixed
        return generator

    @property
    def cloze(self) -> bool:
        """True if predictions of a token do not depend on the token at its position."""
        writer = self.model.part("generator")
        registered = backbones if writer.learned else generators
        return bool(registered.get(writer.backbone["type"]).declared["cloze"])

    @property
    def longest(self) -> int:
        """The longest input that all networks can read."""
        parts = self.model.parts
        return min(network.longest(int(parts[name].embedding["max_length"])) for name, network in self.networks.items())

    @property
    def length(self) -> int:
        """The number of tokens that the networks read at once, [CLS] and [SEP] included: the rows of their training."""
        return min(self.model.length or self.longest, self.longest)

    @property
    def tokenizer(self) -> Tokenizer:
        assert self.model.tokenizer is not None, "without one there is no vocabulary"
        return self.model.tokenizer

    @property
    def start(self) -> Start:
        """The origin of the weights, for provenance.json."""
        sums: dict[str, str] = {}
        for part in self.model.parts.values():
            folder = "" if self.model.run else f"{part.name}/"
            sums |= {f"{folder}{file}": checksum for file, checksum in part.sums().items()}
        return Start(source=self.model.source, sha256=sums, tokenizer=True)


def open_source(loaded: Loaded[FinetuningConfig], seed: int | None = None) -> OpenedModel:
    """Open the model that a fine-tuning file names. Raises ConfigError, DataError, CheckpointError.

    seed  seed of random weights instead of those of the model
    """
    config, loc = loaded.config, ("model",)
    try:
        model = open_model(str(config.model), step=config.step, base=mark_at(loaded.marks, loc).folder)
        networks = build_networks(model, torch.device("cpu"), seed)
    except LabError as error:
        raise loaded.caused(loc, error) from None
    if config.trains and config.network not in networks.networks:
        other = next(iter(networks.networks))
        reason = f"{config.model} has no {config.network}. Write network: {other}. In a command: --set network={other}"
        raise loaded.problem(("network",), reason)
    return networks


def build_networks(model: TrainedModel, device: torch.device, seed: int | None = None) -> OpenedModel:
    """Build the networks of a model, and fill them. Raises ConfigError, DataError, CheckpointError.

    seed  seed of random weights instead of those of the model
    """
    vocabulary = model.vocabulary(device)
    learned = [part for part in model.parts.values() if part.learned]
    weights = {part.name: f"loaded from {model.source}" for part in learned}
    networks = {part.name: build_network(part, vocabulary.pad_id).to(device).eval() for part in learned}
    fixed = None
    for part in model.parts.values():
        if not part.learned:
            options = {key: value for key, value in part.backbone.items() if key != "type"}
            entry = generators.get(part.backbone["type"])
            generator: Any = entry.component(vocabulary, **dict(validate(entry.schema, options)))
            fixed = generator.to(device).eval()
    if seed is not None and model.run:
        with torch.random.fork_rng(devices=[]):
            built = build(run_config(model.run.directory.path), vocabulary, seed=seed)
        networks = {name: cast("Network", built.networks[name]).eval() for name in networks}
        weights = origins(built)
    elif seed is not None:
        weights = dict.fromkeys(networks, DRAWN)
        for part in learned:
            _draw(part, networks[part.name], seed)
    return OpenedModel(model, networks, vocabulary, weights, fixed)


def build_network(part: Part, pad_id: int) -> Network:
    """Build a network of a trained model around its backbone, and fill it.

    It gets memory once its tensors are found to fit, and lacks heads that only training uses. Raises ConfigError,
    DataError, CheckpointError.
    """
    part = part.without_other_heads()
    plugin = part.path / part.plugin if part.plugin and part.plugin.endswith(".py") else part.plugin
    make = partial(make_network, part.backbone, part.embedding, part.vocabulary_size, pad_id, part.heads, plugin)
    try:
        try:
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's, about components that load weights
                network = make(device="meta")
        except Exception:  # a component may read numbers while it is built; if the sizes are to blame, it comes again
            network = make()
        tensors = with_all_names(part.tensors, network)
        account_for(tensors, own_tensors(network), part.stored_name, part.foreign)
        # `bert` holds nothing but its parameters, so that it need not be built again.
        network = network.to_empty(device="cpu") if part.backbone["type"] == "bert" else make()
    except LabError:
        raise
    except Exception as error:  # torch, pydantic and backbones raise many types
        raise part.misfit(_reason(error)) from None
    fill(network, tensors)
    return network


def make_network(
    backbone: Mapping[str, Any],
    embedding: Mapping[str, Any],
    vocabulary_size: int,
    pad_id: int,
    heads: Sequence[str],
    plugin: Path | str | None = None,
    *,
    device: str = "cpu",
) -> Network:
    """Build a network from the sections of an experiment that describe it.

    plugin  file or package that defines the backbone, if it is not built in

    Raises UnknownName with the cure if the plug-in is not loaded, and ValidationError.
    """
    options = dict(backbone)
    name = options.pop("type")
    sizes = validate(Sizes, {key: options.pop(key) for key in ("dim", "depth", "heads")})
    tables = validate(Embedding, {key: embedding[key] for key in ("dim", "max_length", "dropout")})
    try:
        entry = backbones.get(name)
    except UnknownName as error:
        if not plugin:
            raise
        cure = f"pip install '{str(plugin).replace(' ', '==')}'"
        if isinstance(plugin, Path):
            cure = f"import pathlib, registry; registry.load_plugin(pathlib.Path({str(plugin)!r}))"
        raise UnknownName(
            f"the backbone '{name}' is a plug-in, {getattr(plugin, 'name', plugin)}, and code from a folder of weights "
            f"never runs by itself. Read it, then load it first: {cure}"
        ) from error
    # Whatever device transformers has set: on `meta`, where it builds models, components cannot compute numbers.
    with torch.device(device):
        module: Any = entry.component(
            sizes.dim, sizes.depth, sizes.heads, tables.max_length, **dict(validate(entry.schema, options))
        )
        shapes = EmbeddingSizes(vocabulary_size, tables.dim, tables.max_length, tables.dropout)
        return make_pair(None, 0, module, sizes.dim, shapes, "none", pad_id, heads)[1]


def _draw(part: Part, network: Network, seed: int) -> None:
    """Draw all weights of a network from a seed, as a run does. Raises ConfigError for weights of a plug-in."""
    covered = set[nn.Parameter]()
    drawing = [module for module in network.modules() if hasattr(module, "reset_parameters")]
    for module in drawing:
        covered |= set(module.parameters(recurse=False))
    if not backbones.get(part.backbone["type"]).built_in or not covered.issuperset(network.backbone.parameters()):
        reason = "some of its weights cannot be drawn at random. Name the run that it was exported from."
        raise ConfigError(f"{part.path}: {reason}")
    with torch.random.fork_rng(devices=[]):
        for module in drawing:
            module.reset_parameters()  # type: ignore[operator]
    initialise(nn.ModuleDict({"discriminator": network}), partial(weights_from, seed))


def _reason(error: Exception) -> str:
    """Return the words of an error as a sentence."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        section = "embedding" if error.title == "Embedding" else "backbone"
        said = f"{section}.{'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}"
    elif isinstance(error, KeyError):
        said = f"the key {error} is missing"
    else:
        said = (str(error).splitlines() or [type(error).__name__])[0]
    return said if said.endswith(".") else f"{said}."
