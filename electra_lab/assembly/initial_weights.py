"""Weights that training starts from: models and runs that `init` or an objective names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from electra_lab.assembly.build import Built, untrained_tokenizer, vocabulary_size
from electra_lab.config.component import is_default
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
from electra_lab.pretrained.hugging_face import is_model
from electra_lab.pretrained.opening import config_with, open_model, read_run
from electra_lab.pretrained.trained_model import Part
from electra_lab.storage.provenance import Start
from electra_lab.storage.run_directory import RunDirectory, is_run
from registry import Objective, backbones
from registry.errors import CheckpointError, ConfigError, DataError, LabError

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


def load_initial_weights(loaded: Loaded, built: Built, tokenizer: Tokenizer) -> dict[str, Start]:
    """Fill the networks with the weights of `init`, or of models that an objective names; returns their origins.

    Raises ConfigError, DataError.
    """
    found = _fitting(loaded, built, tokenizer)
    for network, beginning in found.items():
        fill(cast("Network", built.networks[network]), beginning.part.tensors)
    others = built.own_parameters()
    started = {}
    for network, beginning in found.items():
        started[network] = Start(
            source=_sources(loaded, built)[network][0],
            sha256=beginning.part.sums(),
            tokenizer=beginning.tokenizer is not None,
            new=[*beginning.account.new, *others],
            unused=list(beginning.account.unused),
        )
    return started


def origins(built: Built, parents: Mapping[str, str] = {}, init: Mapping[str, Start] = {}) -> dict[str, str]:
    """Say where the first weights of each part of the networks, and of the objective, come from.

    parents, init  the networks whose weights were loaded, as in provenance.json
    """
    found, objective = dict.fromkeys(built.brought, BROUGHT), built.learner.objective
    for network, module in built.networks.items():
        for name, parameter in module.named_parameters():
            # To this table, which is the generator's, that of a discriminator may be a difference.
            of_generator = name.startswith("embeddings.tokens.table.")
            if network in parents:
                found[parameter] = f"loaded from {parent_runs(objective)[network]}"
            elif network in init and name not in init[network].new and not of_generator:
                found[parameter] = f"loaded from {init[network].source}"
    named = dict(nn.ModuleDict(built.networks).named_parameters(remove_duplicate=False)) | built.own_parameters()
    parts: dict[str, set[str]] = {}
    for name, parameter in named.items():
        part = re.sub(r"^(\w+(\.heads)?\.\w+).*", r"\1", name)
        parts.setdefault(part, set()).add(found.get(parameter, DRAWN))
    return {part: " and ".join(sorted(ways)) for part, ways in parts.items()}


def refuse_initial_weights(loaded: Loaded, built: Built) -> None:
    """Raise the errors of `load_initial_weights` that can be known without the corpus: ConfigError, DataError."""
    _fitting(loaded, built, untrained_tokenizer(loaded))


def _fitting(loaded: Loaded, built: Built, tokenizer: Tokenizer | None) -> dict[str, Beginning]:
    """Read the models, and compare them with the networks. Errors of the file are reported before missing data.

    tokenizer  the experiment's, None if it is not known yet
    """
    found: dict[str, Beginning] = {}
    sources = _sources(loaded, built)
    absent: LabError | None = None
    for network in NETWORKS:
        if network not in sources:
            continue
        source, loc = sources[network]
        if loc[0] == "init" and (parent := parents_of(built.learner.objective).get(network)):
            key = ".".join(map(str, place_of(loaded, parent)))
            raise loaded.problem(loc, f"the {network} already gets its weights from {key}. Remove one of the two keys.")
        try:
            beginning = _beginning(loaded, source, network, cast("Network", built.networks[network]), tokenizer, loc)
            if loc[0] != "init" and beginning.account.new:
                lacking = ", ".join(dict.fromkeys(filter(None, map(head_of, beginning.account.new))))
                raise ValueError(f"it has no head '{lacking}', which the {network} needs and does not learn.")
            found[network] = beginning
        except ConfigError as error:
            raise loaded.problem(loc, str(error)) from None
        except LabError as error:
            absent = absent or loaded.problem(loc, str(error), DataError)
        except ValueError as error:
            raise loaded.problem(loc, f"{source}: does not fit: {error}") from None
    if absent:
        raise absent
    _refuse_two_values(loaded, built, found)
    return found


def _sources(loaded: Loaded, built: Built) -> dict[str, tuple[str, Loc]]:
    """Return, by network, a model to start from, and the key that names it."""
    found: dict[str, tuple[str, Loc]] = {}
    for network, path in parent_models(built.learner.objective).items():
        found[network] = str(path), place_of(loaded, path)
    for network, source in loaded.config.init.models.items():
        found[network] = str(source), ("init", network)
    return found


def _beginning(
    loaded: Loaded, source: str, network: str, module: Network, tokenizer: Tokenizer | None, loc: Loc
) -> Beginning:
    """Read the part of a model for the network `module`. Raises ValueError if they do not fit, LabError."""
    if is_run(Path(source)):
        config_with(Path(source), network)  # one without a checkpoint has its own sentence
    folder = mark_at(loaded.marks, loc).folder
    model = open_model(source, base=folder, network=network, plugins=False)
    part = _with_pad(loaded, model.part(network), network)
    _refuse_other_sizes(loaded, source, part, network)
    _refuse_other_tokens(loaded, source, part, model.tokenizer, tokenizer)
    part, own = replace(part, tensors=with_all_names(part.tensors, module)), own_tensors(module)
    # The networks may be sketches, with a vocabulary of any size.
    size = tokenizer.get_vocab_size() if tokenizer else _rows(part) or len(own[TABLE])
    own |= {name: torch.empty(size, *own[name].shape[1:], device="meta") for name in VOCABULARY_SIZED if name in own}
    padding: list[str] = []
    if model.tokenizer is not None and model.tokenizer.get_vocab_size() == size:
        part, padding = _without_padding(part, size)
    account = account_for(part.tensors, own, part.their_name, part.foreign)
    for name in padding:
        if part.their_name(name) not in account.unused:
            rows = f"{part.their_name(name)}[{size}:{part.vocabulary_size}]"
            account = replace(account, unused=(*account.unused, rows))
    return Beginning(part, model.tokenizer, account)


def _with_pad(loaded: Loaded, part: Part, network: str) -> Part:
    """Return the network for the padding token of the experiment's own section."""
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
    ours = loaded.config.model_dump(mode="json")
    theirs = {network: dict(part.backbone), "embedding": dict(part.embedding)}
    if "embeddings.positions.weight" not in part.tensors:  # tables of the backbone's own are compared as tensors
        theirs["embedding"].pop("max_length", None)
    mine, other = (
        round(section.get("ff_mult", 0) * section.get("dim", 0)) for section in (ours[network], part.backbone)
    )
    if mine == other and "ff_mult" in ours[network]:
        theirs[network]["ff_mult"] = ours[network]["ff_mult"]  # the same width, which is rounded
    wrong = {}
    same = ours[network]["type"] == part.backbone["type"]
    if same and part.backbone["type"] == "hugging_face":
        wrong = _other_options(ours[network], theirs[network], network)
    for section, values in theirs.items():
        for key, value in values.items():
            written = any((place, key) in loaded.marks for place in (section, "discriminator"))
            if key == "dropout" or (key in THETAS and written):
                continue
            if ours[section].get(key) != value:
                wrong[key] = f"{section}.{key} is {ours[section].get(key)} here and {value} there"
    if wrong:
        reason = wrong["type"] if "type" in wrong else "; ".join(wrong.values())  # other options follow from the type
        raise ConfigError(
            f"{source}: does not fit this network: {reason}. Write the values of the model, or name another one."
        )


def _other_options(ours: dict[str, Any], theirs: dict[str, Any], network: str) -> dict[str, str]:
    """Compare the configs of two encoders of transformers.

    Rates of dropout, sizes of tables, and what is written of rotary positions may differ.
    """
    if ours["model_type"] != theirs["model_type"]:
        return {"type": f"{network}.model_type is {ours['model_type']} here and {theirs['model_type']} there"}
    config_of = backbones.get("hugging_face").component.config_of  # type: ignore[attr-defined]
    here, there = (config_of(section, 1).to_dict() for section in (ours, theirs | {"ff_mult": ours["ff_mult"]}))
    del theirs["config"]
    free = {"pad_token_id", "max_position_embeddings", *(key for key in ROPE if key in ours["config"])}
    keys = [key for key in sorted(here.keys() | there.keys()) if "drop" not in key and key not in free]
    differing = [key for key in keys if here.get(key) != there.get(key)]
    return {key: f"{network}.config.{key} is {here.get(key)} here and {there.get(key)} there" for key in differing}


def _refuse_other_tokens(
    loaded: Loaded, source: str, part: Part, theirs: Tokenizer | None, ours: Tokenizer | None
) -> None:
    """Raise ConfigError if an id means another token there."""
    folder = part.path.parents[1] if part.format == "run" else part.path
    cure = f"Write tokenizer: {{type: pretrained, path: {folder}}}."
    if ours is None:
        rows, most = _rows(part), vocabulary_size(loaded)
        if most is not None and rows > most:
            raise ConfigError(f"{source}: has {rows:,} tokens, but tokenizer.vocab_size is {most:,}. {cure}")
    elif theirs is not None:
        here, there = ours.get_vocab(), theirs.get_vocab()
        if differing := [word for word in here | there if here.get(word) != there.get(word)]:
            word = min(differing)
            one, two = (f"token {ids[word]}" if word in ids else "absent" for ids in (here, there))
            raise ConfigError(f"{source}: has other tokens: {word!r} is {one} here and {two} there. {cure}")


def _refuse_two_values(loaded: Loaded, built: Built, found: Mapping[str, Beginning]) -> None:
    """Raise ConfigError if both networks share a tensor for which their models have different values."""
    if len(found) < len(NETWORKS):
        return
    generator, discriminator = (own_tensors(cast("Network", built.networks[name])) for name in NETWORKS)
    its, others = (found[name].part.tensors for name in NETWORKS)
    for name, tensor in generator.items():
        if tensor is discriminator.get(name) and not torch.equal(its[name].float(), others[name].float()):
            raise loaded.problem(
                ("init", "discriminator"),
                f"the two models have different values of {name}, which both networks share (embedding.tie: "
                f"{loaded.config.embedding.tie}). Write embedding.tie: none, or start only one of them.",
            )


SAME = ("corpus", "tokenizer", "data.held_out", "data.overlap", "embedding.dim", "embedding.max_length")


def parents_of(objective: Objective) -> Mapping[str, Path]:
    """Return the run directories and models that an objective starts from, by network of the objective."""
    return objective.earlier_runs()


def parent_models(objective: Objective) -> Mapping[str, Path]:
    """Return those that are folders in Hugging Face format: their weights come as those of `init`."""
    return {network: path for network, path in parents_of(objective).items() if is_model(path)}


def parent_runs(objective: Objective) -> Mapping[str, Path]:
    """Return the others, run directories."""
    return {network: path for network, path in parents_of(objective).items() if not is_model(path)}


def evaluates_at_start(config: ExperimentConfig, objective: Objective) -> bool:
    """Return True if validation text is evaluated before the first step: with `auto`, if weights are loaded."""
    wanted = config.evaluate.at_start
    return bool(config.init.models or parents_of(objective)) if wanted == "auto" else wanted


def refuse_other_parents(loaded: Loaded, objective: Objective) -> None:
    """Raise ConfigError if a parent run has other data or another network, DataError if it is not there."""
    ours = loaded.config.model_dump(mode="json", exclude_none=True)
    for network, run in parent_runs(objective).items():
        try:
            theirs = config_with(run, network)
        except (CheckpointError, DataError) as error:
            raise loaded.problem(place_of(loaded, run), str(error), DataError) from None
        for key in (*SAME[:2], network, *SAME[2:]):
            loc: Loc = tuple(key.split("."))
            both: list[Any] = [ours, theirs]
            try:
                one, two = (reduce(getitem, loc, config) for config in both)
            except (KeyError, TypeError):
                reason = f"{run / 'config.yaml'} is not a complete experiment: it lacks {key}."
                raise loaded.problem(place_of(loaded, run), reason) from None
            if isinstance(one, dict) and isinstance(two, dict) and one.get("type") == two.get("type"):
                # An earlier release did not know every option of today.
                two = {key: value for key, value in one.items() if is_default(loaded.config, (*loc, key), value)} | two
            if one != two:
                cure = "Write the run's own section, or name another run."
                raise loaded.problem(loc, f"is {one}, but the run whose {network} is used, {run}, has {two}. {cure}")


def load_parents(loaded: Loaded, built: Built, store: Store) -> dict[str, str]:
    """Load the weights of parent runs; returns the checkpoint of each network. Raises DataError, CheckpointError."""
    used = {}
    for network, path in parent_runs(built.learner.objective).items():
        try:
            RunDirectory(path).provenance()
        except CheckpointError as error:
            raise loaded.problem(place_of(loaded, path), str(error), DataError) from None
        model = read_run(path, plugins=False)
        assert model.run is not None
        if (there := model.run.provenance.data.store) != store.key:
            # The sections may be equal and the files not; then the same id may mean another token.
            stores = f"token store {there}, here {store.key}"
            reason = f"{path} was trained on other data ({stores}), so its tokens differ."
            raise loaded.problem(place_of(loaded, path), reason, DataError)
        used[network] = load_part(model.part(network), cast("Network", built.networks[network]))
    return used


def load_part(part: Part, network: Network) -> str:
    """Fill a network, and return the checkpoint with its checksum. Raises CheckpointError."""
    try:
        account = account_for(part.tensors, own_tensors(network))
    except ValueError as error:
        raise part.misfit(str(error)) from None
    if others := (*account.new, *account.unused):
        raise part.misfit(f"it has other heads: {', '.join(others)}.")
    fill(network, part.tensors)
    (checksum,) = part.sums().values()
    return f"{part.path.name} {checksum}"


def place_of(loaded: Loaded, run: Path) -> Loc:
    """Return the option of the objective that names a run."""
    options = loaded.config.objective.keywords()
    return ("objective", *(name for name, value in options.items() if value == run))
