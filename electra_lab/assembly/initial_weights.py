"""Initial weights of training: models and runs that `init` or an objective names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from electra_lab.assembly.build import Built, untrained_tokenizer, vocabulary_size
from electra_lab.assembly.data import settings_of_store
from electra_lab.config.load import Loaded
from electra_lab.config.schema import ExperimentConfig
from electra_lab.config.source import Loc, mark_at
from electra_lab.data.store import Store
from electra_lab.model.network import Network
from electra_lab.model.weights import (
    TABLE,
    VOCABULARY_SIZED,
    Account,
    account_for,
    fill,
    head_of,
    own_tensors,
    with_all_names,
)
from electra_lab.pretrained.opening import config_with, open_model
from electra_lab.pretrained.trained_model import Part
from electra_lab.storage.provenance import Start
from electra_lab.storage.run_directory import is_run
from registry import Objective, backbones
from registry.errors import ConfigError, DataError, LabError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

DRAWN, BROUGHT = "initialized by the lab", "brought by the component"
THETAS = ("theta", "global_theta", "local_theta")  # of rotary positions: longer rows may want another one
ROPE = ("rope_parameters", "rope_theta")  # the same in configs of transformers
NETWORKS = ("generator", "discriminator")  # in this order: a discriminator's table may be a difference to the other


@dataclass(frozen=True)
class Beginning:
    """The part of a trained model that a network starts from, compared with the network."""

    part: Part
    tokenizer: Tokenizer | None
    account: Account
    store: str | None  # key of the token store of a run


def load_initial_weights(loaded: Loaded, built: Built, store: Store) -> dict[str, Start]:
    """Fill the networks with the weights of runs and models that `init` or the objective names; returns their origins.

    Raises ConfigError, DataError.
    """
    beginnings, sources = _fitting(loaded, built, store.tokenizer), _sources(loaded, built)
    for network, beginning in beginnings.items():
        source, loc = sources[network]
        if loc[0] == "objective" and beginning.store not in (None, store.key):
            stores = f"token store {beginning.store}, here {store.key}"
            reason = f"{source} was trained on other data ({stores}), which may contain held-out text of this run."
            raise loaded.problem(loc, reason, DataError)
    for network, beginning in beginnings.items():
        fill(cast("Network", built.networks[network]), beginning.part.tensors)
    others = built.own_parameters()
    started = {}
    for network, beginning in beginnings.items():
        started[network] = Start(
            source=sources[network][0],
            sha256=beginning.part.sums(),
            tokenizer=beginning.tokenizer is not None,
            new=[*beginning.account.new, *others],
            unused=list(beginning.account.unused),
        )
    return started


def origins(built: Built, init: Mapping[str, Start] = {}) -> dict[str, str]:
    """Return the origin of the first weights of each part of the networks and of the objective, in words.

    init  origins of the networks whose weights were loaded, as in provenance.json
    """
    origin_of = dict.fromkeys(built.brought, BROUGHT)
    for network, module in built.networks.items():
        for name, parameter in module.named_parameters():
            # This table is the generator's, to which a discriminator's may be a difference.
            of_generator = name.startswith("embeddings.tokens.table.")
            if network in init and name not in init[network].new and not of_generator:
                origin_of[parameter] = f"loaded from {init[network].source}"
    named = dict(nn.ModuleDict(built.networks).named_parameters(remove_duplicate=False)) | built.own_parameters()
    parts: dict[str, set[str]] = {}
    for name, parameter in named.items():
        part = re.sub(r"^(\w+(\.heads)?\.\w+).*", r"\1", name)
        parts.setdefault(part, set()).add(origin_of.get(parameter, DRAWN))
    return {part: " and ".join(sorted(ways)) for part, ways in parts.items()}


def refuse_initial_weights(loaded: Loaded, built: Built) -> None:
    """Raise the errors of `load_initial_weights` that need no corpus: ConfigError, DataError."""
    _fitting(loaded, built, untrained_tokenizer(loaded))


def _fitting(loaded: Loaded, built: Built, tokenizer: Tokenizer | None) -> dict[str, Beginning]:
    """Read the models, and compare them with the networks. Errors of the file are reported before missing data.

    tokenizer  tokenizer of the experiment, None before it is trained
    """
    beginnings: dict[str, Beginning] = {}
    sources = _sources(loaded, built)
    absent: LabError | None = None
    for network in NETWORKS:
        if network not in sources:
            continue
        source, loc = sources[network]
        if loc[0] == "init" and (parent := built.learner.objective.earlier_runs().get(network)):
            key = ".".join(map(str, place_of(loaded, parent)))
            raise loaded.problem(loc, f"the {network} already gets its weights from {key}. Remove one of the two keys.")
        if loc[0] == "objective" and is_run(Path(source)):
            _refuse_other_text(loaded, Path(source), network)
        try:
            beginning = _beginning(loaded, source, network, cast("Network", built.networks[network]), tokenizer, loc)
            if loc[0] != "init" and beginning.account.new:
                lacking = ", ".join(dict.fromkeys(filter(None, map(head_of, beginning.account.new))))
                raise ValueError(f"it has no head '{lacking}', which the {network} needs and does not learn.")
            beginnings[network] = beginning
        except ConfigError as error:
            raise loaded.problem(loc, str(error)) from None
        except LabError as error:
            absent = absent or loaded.problem(loc, str(error), DataError)
        except ValueError as error:
            raise loaded.problem(loc, f"{source}: does not fit: {error}") from None
    if absent:
        raise absent
    _refuse_two_values(loaded, built, beginnings)
    return beginnings


def _refuse_other_text(loaded: Loaded, run: Path, network: str) -> None:
    """Raise ConfigError if a run of the objective has a token store with other settings.

    It may have been trained on held-out text of this experiment, and the same id may mean another token.
    """
    try:
        there = settings_of_store(config_with(run, network))
    except LabError:
        return  # it is named when the run is opened
    here = settings_of_store(loaded.config.model_dump(mode="json"))
    for key in dict.fromkeys([*here, *there]):
        if here.get(key) != there.get(key):
            reason = f"is {here.get(key)}, but the run whose {network} is used, {run}, has {there.get(key)}"
            raise loaded.problem(tuple(key.split(".")), f"{reason}. Write the value of that run, or name another run.")


def _sources(loaded: Loaded, built: Built) -> dict[str, tuple[str, Loc]]:
    """Return, by network, a run or model to start from, and the key that names it."""
    sources: dict[str, tuple[str, Loc]] = {}
    for network, path in built.learner.objective.earlier_runs().items():
        sources[network] = str(path), place_of(loaded, path)
    for network, source in loaded.config.init.models.items():
        sources[network] = str(source), ("init", network)
    return sources


def _beginning(
    loaded: Loaded, source: str, network: str, module: Network, tokenizer: Tokenizer | None, loc: Loc
) -> Beginning:
    """Read the part of a model for the network `module`. Raises ValueError if they do not fit, LabError."""
    if is_run(Path(source)):
        config_with(Path(source), network)  # refuses a run without a checkpoint in a sentence
    folder = mark_at(loaded.marks, loc).folder
    model = open_model(source, base=folder, network=network, plugins=False)
    part = _with_pad(loaded, model.part(network), network)
    _refuse_other_sizes(loaded, source, part, network)
    cure = f"Write tokenizer: {{type: pretrained, path: {part.path.parents[1] if model.run else part.path}}}."
    if model.run and loc[0] == "objective":  # the token stores must be equal, and with them the tokenizers
        cure = "Write the sections corpus and tokenizer of that run, or name another run."
    _refuse_other_tokens(loaded, source, part, model.tokenizer, tokenizer, cure)
    part, tensors = replace(part, tensors=with_all_names(part.tensors, module)), own_tensors(module)
    # The networks may be sketches, with a vocabulary of any size.
    size = tokenizer.get_vocab_size() if tokenizer else _rows(part) or len(tensors[TABLE])
    sized = [name for name in VOCABULARY_SIZED if name in tensors]
    tensors |= {name: torch.empty(size, *tensors[name].shape[1:], device="meta") for name in sized}
    padding: list[str] = []
    if model.tokenizer is not None and model.tokenizer.get_vocab_size() == size:
        part, padding = _without_padding(part, size)
    account = account_for(part.tensors, tensors, part.stored_name, part.foreign)
    for name in padding:
        if part.stored_name(name) not in account.unused:
            rows = f"{part.stored_name(name)}[{size}:{part.vocabulary_size}]"
            account = replace(account, unused=(*account.unused, rows))
    return Beginning(part, model.tokenizer, account, model.run.provenance.data.store if model.run else None)


def _with_pad(loaded: Loaded, part: Part, network: str) -> Part:
    """Return the part with the padding token of the experiment's section."""
    section = getattr(loaded.config, network)
    options = section.keywords().get("config") or {} if section.type == part.backbone["type"] else {}
    pad = options.get("pad_token_id", 1)
    return part.family.with_pad(part, pad) if part.family and isinstance(pad, int) else part


def _without_padding(part: Part, size: int) -> tuple[Part, list[str]]:
    """Leave out the rows that no token has, and name their tensors: some tables are padded to a multiple of 8 or 64."""
    padded = [name for name in VOCABULARY_SIZED if _rows(part, name) > size]
    cut = {name: part.tensors[name][:size] for name in padded}
    return replace(part, tensors=part.tensors | cut), padded


def _rows(part: Part, name: str = TABLE) -> int:
    tensor = part.tensors.get(name)
    return len(tensor) if tensor is not None and tensor.ndim else 0


def _refuse_other_sizes(loaded: Loaded, source: str, part: Part, network: str) -> None:
    here = loaded.config.model_dump(mode="json")
    there = {network: dict(part.backbone), "embedding": dict(part.embedding)}
    if "embeddings.positions.weight" not in part.tensors:  # tables of the backbone are compared as tensors
        there["embedding"].pop("max_length", None)
    widths = {round(section.get("ff_mult", 0) * section.get("dim", 0)) for section in (here[network], part.backbone)}
    if len(widths) == 1 and "ff_mult" in here[network]:
        there[network]["ff_mult"] = here[network]["ff_mult"]  # the same width, which is rounded
    wrong = {}
    same = here[network]["type"] == part.backbone["type"]
    if same and part.backbone["type"] == "hugging_face":
        wrong = _other_options(here[network], there[network], network)
    for section, values in there.items():
        for key, value in values.items():
            written = any((place, key) in loaded.marks for place in (section, "discriminator"))
            if key == "dropout" or (key in THETAS and written):
                continue
            if here[section].get(key) != value:
                wrong[key] = f"{section}.{key} is {here[section].get(key)} here and {value} there"
    if wrong:
        reason = wrong["type"] if "type" in wrong else "; ".join(wrong.values())  # other options follow from the type
        raise ConfigError(
            f"{source}: does not fit this network: {reason}. Write the values of the model, or name another one."
        )


def _other_options(section: dict[str, Any], of_model: dict[str, Any], network: str) -> dict[str, str]:
    """Compare two encoders of transformers, but for dropout, sizes of tables, and rotary positions that are set."""
    if section["model_type"] != of_model["model_type"]:
        return {"type": f"{network}.model_type is {section['model_type']} here and {of_model['model_type']} there"}
    config_of = backbones.get("hugging_face").component.config_of  # type: ignore[attr-defined]
    here = config_of(section, 1).to_dict()
    there = config_of(of_model | {"ff_mult": section["ff_mult"]}, 1).to_dict()
    del of_model["config"]
    free = {"pad_token_id", "max_position_embeddings", *(key for key in ROPE if key in section["config"])}
    keys = [key for key in sorted(here.keys() | there.keys()) if "drop" not in key and key not in free]
    differing = [key for key in keys if here.get(key) != there.get(key)]
    return {key: f"{network}.config.{key} is {here.get(key)} here and {there.get(key)} there" for key in differing}


def _refuse_other_tokens(
    loaded: Loaded, source: str, part: Part, model_tokenizer: Tokenizer | None, tokenizer: Tokenizer | None, cure: str
) -> None:
    """Raise ConfigError with a cure if an id means another token there."""
    if tokenizer is None:
        rows, most = _rows(part), vocabulary_size(loaded)
        if most is not None and rows > most:
            raise ConfigError(f"{source}: has {rows:,} tokens, but tokenizer.vocab_size is {most:,}. {cure}")
    elif model_tokenizer is not None:
        here, there = tokenizer.get_vocab(), model_tokenizer.get_vocab()
        if differing := [word for word in here | there if here.get(word) != there.get(word)]:
            word = min(differing)
            now, then = (f"token {ids[word]}" if word in ids else "absent" for ids in (here, there))
            raise ConfigError(f"{source}: has other tokens: {word!r} is {now} here and {then} there. {cure}")


def _refuse_two_values(loaded: Loaded, built: Built, beginnings: Mapping[str, Beginning]) -> None:
    """Raise ConfigError if both networks share a tensor for which their models have different values."""
    if len(beginnings) < len(NETWORKS):
        return
    generator, discriminator = (own_tensors(cast("Network", built.networks[name])) for name in NETWORKS)
    first, second = (beginnings[name].part.tensors for name in NETWORKS)
    for name, tensor in generator.items():
        if tensor is discriminator.get(name) and not torch.equal(first[name].float(), second[name].float()):
            raise loaded.problem(
                ("init", "discriminator"),
                f"the two models have different values of {name}, which both networks share (embedding.tie: "
                f"{loaded.config.embedding.tie}). Write embedding.tie: none, or start only one of them.",
            )


def evaluates_at_start(config: ExperimentConfig, objective: Objective) -> bool:
    """Return True if validation text is evaluated before the first step: with `auto`, if weights are loaded."""
    setting = config.evaluate.at_start
    return bool(config.init.models or objective.earlier_runs()) if setting == "auto" else setting


def place_of(loaded: Loaded, run: Path) -> Loc:
    """Return the option of the objective that names a run."""
    options = loaded.config.objective.keywords()
    return ("objective", *(name for name, value in options.items() if value == run))
