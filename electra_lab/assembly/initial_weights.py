"""Initial weights that `init` names: models in Hugging Face format and parent runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from electra_lab.assembly.build import Built, untrained_tokenizer, vocabulary_size
from electra_lab.assembly.parent_runs import config_of, parent_runs, place_of
from electra_lab.config.load import Loaded
from electra_lab.config.source import mark_at
from electra_lab.model.network import Network
from electra_lab.model.weights import TABLE, VOCABULARY_SIZED, Account, account_for, fill, own_tensors
from electra_lab.pretrained.hugging_face import CONFIG, files_of, read_folder, shape
from electra_lab.pretrained.transformers_names import FOREIGN, Kind, in_our_names, transformers_name
from electra_lab.storage.checkpoint import read_model
from electra_lab.storage.files import sha256
from electra_lab.storage.provenance import Start
from electra_lab.storage.run_directory import RunDirectory, is_run
from electra_lab.tokenizers.pretrained import read_tokenizer
from registry.errors import ConfigError, DataError, LabError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

DRAWN, BROUGHT = "initialized by the lab", "brought by the component"
NETWORKS = ("generator", "discriminator")  # in this order: a discriminator's table may be a difference to the other


@dataclass(frozen=True)
class Model:
    """A network's weights from elsewhere, under our names, and what they belong to."""

    path: Path
    tensors: dict[str, Tensor]
    sums: dict[str, str]  # by file, its checksum
    sections: dict[str, dict[str, Any]]  # `embedding`, and the network's own, as in a config
    tokenizer: Tokenizer | None  # None if there is none in the folder
    kind: Kind | None = None  # of a model in Hugging Face format


def load_initial_weights(loaded: Loaded, built: Built, tokenizer: Tokenizer) -> dict[str, Start]:
    """Fill the networks with the weights that `init` names; returns their origins. Raises ConfigError, DataError."""
    models = _fitting(loaded, built, tokenizer)
    for network, (model, _) in models.items():
        fill(cast("Network", built.networks[network]), model.tensors)
    others = built.own_parameters()
    starts = {}
    for network, (model, account) in models.items():
        starts[network] = Start(
            source=str(loaded.config.init.models[network]),
            sha256=model.sums,
            tokenizer=model.tokenizer is not None,
            new=[*account.new, *others],
            unused=list(account.unused),
        )
    return starts


def origins(built: Built, parents: Mapping[str, str] = {}, init: Mapping[str, Start] = {}) -> dict[str, str]:
    """Return the origin of the initial weights of each part of the networks and of the objective.

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
    """Raise the errors of `load_initial_weights` that show without the corpus: ConfigError, DataError."""
    _fitting(loaded, built, untrained_tokenizer(loaded))


def _fitting(loaded: Loaded, built: Built, tokenizer: Tokenizer | None) -> dict[str, tuple[Model, Account]]:
    """Read the models, and compare them with the networks. Mistakes of the file are raised before missing data.

    tokenizer  the experiment's, None if it is not known yet
    """
    found: dict[str, tuple[Model, Account]] = {}
    absent: LabError | None = None
    for network in NETWORKS:
        source, loc = loaded.config.init.models.get(network), ("init", network)
        if source is None:
            continue
        if run := parent_runs(built.learner.objective).get(network):
            key = ".".join(map(str, place_of(loaded, run)))
            raise loaded.problem(loc, f"the {network} comes from {key} already. Remove one of the two keys.")
        own = own_tensors(cast("Network", built.networks[network]))
        try:
            path = Path(source)
            model = _of_run(path, network, own) if is_run(path) else _of_folder(loaded, source, network)
            _refuse_other_sizes(loaded, source, model)
            _refuse_other_tokens(loaded, source, model, tokenizer)
            # The networks may be sketches, with a vocabulary of any size.
            size = tokenizer.get_vocab_size() if tokenizer else _rows(model) or len(own[TABLE])
            own |= {n: torch.empty(size, *own[n].shape[1:], device="meta") for n in VOCABULARY_SIZED if n in own}
            known = partial(transformers_name, kind=model.kind) if model.kind else str
            model, padding = _without_padding(model, size)
            account = account_for(model.tensors, own, known, FOREIGN if model.kind else None)
            rows = [known(name) for name in padding if known(name.partition("[")[0]) not in account.unused]
            found[network] = model, replace(account, unused=(*account.unused, *rows))
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


def _without_padding(model: Model, size: int) -> tuple[Model, list[str]]:
    """Leave out the rows of padding, which no token of the model's tokenizer uses, and name their tensors.

    Some tables are padded to a multiple of 8 or 64 for speed.
    """
    if model.tokenizer is None or model.tokenizer.get_vocab_size() != size:
        return model, []
    padded = {name: model.tensors[name] for name in VOCABULARY_SIZED if _rows(model, name) > size}
    cut = {name: tensor[:size] for name, tensor in padded.items()}
    return replace(model, tensors=model.tensors | cut), [f"{n}[{size}:{len(t)}]" for n, t in padded.items()]


def _rows(model: Model, name: str = TABLE) -> int:
    tensor = model.tensors.get(name)
    return len(tensor) if tensor is not None and tensor.ndim else 0


def _of_folder(loaded: Loaded, source: str, network: str) -> Model:
    """Read a model in Hugging Face format."""
    folder = read_folder(source, network, mark_at(loaded.marks, ("init", network)).folder)
    sizes, ours = shape(folder.config, folder.path / CONFIG), getattr(loaded.config, network).dump()
    section = {"type": "bert", "dim": sizes.dim, "depth": sizes.depth, "heads": sizes.heads, "ff_mult": sizes.ff_mult}
    if round(sizes.dim * ours.get("ff_mult", 0)) == round(sizes.dim * sizes.ff_mult):
        section["ff_mult"] = ours["ff_mult"]  # the same width, which is rounded
    return Model(
        path=folder.path,
        tensors=in_our_names(folder.tensors(), folder.kind),
        sums={file.name: sha256(file) for file in files_of(folder.path)},
        sections={network: section, "embedding": {"dim": sizes.embedding_dim, "max_length": sizes.max_length}},
        tokenizer=read_tokenizer(folder.path) if folder.has_tokenizer else None,
        kind=folder.kind,
    )


def _of_run(path: Path, network: str, own: Mapping[str, Tensor]) -> Model:
    """Read a network of a run; the generator of a run without one is its model."""
    run = RunDirectory(path)
    run.refuse_other_format(run.provenance())
    config = config_of(path, network)
    try:
        section = {key: value for key, value in config[network].items() if key != "dropout"}
        embedding = {key: config["embedding"][key] for key in ("dim", "max_length")}
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path / 'config.yaml'}: is not a complete experiment.") from None
    saved = read_model(run.checkpoints)
    return Model(
        path=path,
        tensors=_network_of(saved.tensors, network, own),
        sums=saved.sums,
        sections={network: section, "embedding": embedding},
        tokenizer=run.tokens()[0],
    )


def _network_of(saved: Mapping[str, Tensor], network: str, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a network of a checkpoint, where shared ones are only under the network that came first."""
    parts: dict[str, dict[str, Tensor]] = {"generator": {}, "discriminator": {}}
    for key, tensor in saved.items():
        owner, _, name = key.partition(".")
        if owner in parts:
            parts[owner][name] = tensor
    generator, discriminator = parts["generator"], parts["discriminator"]
    if "embeddings.tokens.difference.weight" in discriminator:  # tie: gradient_disentangled
        table = discriminator.pop("embeddings.tokens.table.weight", generator.get(TABLE))
        assert table is not None
        generator.setdefault(TABLE, table)
        discriminator[TABLE] = table + discriminator.pop("embeddings.tokens.difference.weight")
    if network == "discriminator" or not generator:
        mine, other = discriminator, generator
    else:
        mine, other = generator, discriminator
    # Both have the sections of `own`, which are compared, and only heads are never shared.
    shared = {n: other[n] for n in own if n in other and n not in mine and not n.startswith("heads.")}
    return mine | shared


def _refuse_other_sizes(loaded: Loaded, source: str, model: Model) -> None:
    ours, wrong = loaded.config.model_dump(mode="json"), dict[str, str]()
    for section, theirs in model.sections.items():
        for key, value in theirs.items():
            if (here := ours[section].get(key)) != value:
                wrong[f"{section}.{key}"] = f"{section}.{key} is {here} here and {value} there"
    types = [reason for key, reason in wrong.items() if key.endswith(".type")]  # other options follow from it
    if wrong:
        reason = "; ".join(types or wrong.values())
        raise ConfigError(f"{source}: is another network: {reason}. Write what is there, or name another model.")


def _refuse_other_tokens(loaded: Loaded, source: str, model: Model, tokenizer: Tokenizer | None) -> None:
    """Raise ConfigError if an id means another token there."""
    cure = f"Write tokenizer: {{type: pretrained, path: {model.path}}}."
    if tokenizer is None:
        rows, most = _rows(model), vocabulary_size(loaded)
        if most is not None and rows > most:
            raise ConfigError(f"{source}: has {rows:,} tokens, but tokenizer.vocab_size is {most:,}. {cure}")
    elif model.tokenizer is not None:
        here, there = tokenizer.get_vocab(), model.tokenizer.get_vocab()
        if differing := [word for word in here | there if here.get(word) != there.get(word)]:
            word = min(differing)
            one, two = (f"token {ids[word]}" if word in ids else "absent" for ids in (here, there))
            raise ConfigError(f"{source}: has other tokens: {word!r} is {one} here and {two} there. {cure}")


def _refuse_two_values(loaded: Loaded, built: Built, found: Mapping[str, tuple[Model, Account]]) -> None:
    """Raise ConfigError if both networks share a tensor for which their models have different values."""
    if len(found) < len(NETWORKS):
        return
    generator, discriminator = (own_tensors(cast("Network", built.networks[network])) for network in NETWORKS)
    first, second = (found[network][0].tensors for network in NETWORKS)
    for name, tensor in generator.items():
        if tensor is discriminator.get(name) and not torch.equal(first[name].float(), second[name].float()):
            raise loaded.problem(
                ("init", "discriminator"),
                f"the two models have different values of {name}, which both networks share (embedding.tie: "
                f"{loaded.config.embedding.tie}). Write embedding.tie: none, or start only one of them.",
            )
