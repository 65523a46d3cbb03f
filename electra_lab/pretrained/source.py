"""The pre-trained model that fine-tuning starts from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from electra_lab.assembly.build import build, weights_from
from electra_lab.assembly.initial_weights import DRAWN, origins
from electra_lab.config.finetune import FinetuningConfig
from electra_lab.config.load import Loaded
from electra_lab.config.source import mark_at
from electra_lab.export.networks import exportable
from electra_lab.model.initialise import initialise
from electra_lab.model.network import Network
from electra_lab.pretrained.hugging_face import CONFIG, files_of, locate, read_config
from electra_lab.pretrained.opened import open_run
from electra_lab.storage.files import sha256
from electra_lab.storage.provenance import Start
from electra_lab.storage.run_directory import is_run
from registry import Plugin, Vocabulary, backbones
from registry.errors import ConfigError, LabError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NETWORKS = ("discriminator", "generator")


@dataclass(frozen=True)
class Source:
    """Networks with what they read and where they come from."""

    networks: dict[str, Network]  # on the CPU, in eval mode
    heads: dict[str, tuple[str, ...]]
    tokenizer: Tokenizer
    vocabulary: Vocabulary
    length: int  # of the rows of pre-training
    longest: int  # that the networks can read
    described: dict[str, Any]  # config.json of the network that is used
    start: Start
    weights: dict[str, str]  # by part of a network, where they come from
    plugins: tuple[Plugin, ...] = ()


def open_source(loaded: Loaded[FinetuningConfig], seed: int | None = None) -> Source:
    """Open the model that a fine-tuning file names. Raises ConfigError, DataError, CheckpointError.

    seed  draw the weights from this seed instead of reading them
    """
    config = loaded.config
    name, loc = os.path.expanduser(str(config.model)), ("model",)
    try:
        if is_run(Path(name)):
            source = _of_run(Path(name), config.network, seed)
        else:
            source = _of_folder(name, config.network, mark_at(loaded.marks, loc).folder, seed)
    except LabError as error:
        raise loaded.caused(loc, error) from None
    if config.trains and config.network not in source.networks:
        reason = f"{config.model} has no {config.network}. Write network: {next(iter(source.networks))}."
        raise loaded.problem(("network",), reason)
    return source


def _of_run(path: Path, network: str, seed: int | None) -> Source:
    opened = open_run(path, torch.device("cpu"))
    found = {name: each for name, each in opened.networks.items() if isinstance(each, Network)}
    weights = dict.fromkeys(found, f"loaded from {path}")
    described = {each.name: each.config for each in exportable(opened)}
    if seed is not None:
        with torch.random.fork_rng(devices=[]):
            built = build(opened.loaded, opened.vocabulary, seed=seed)
        found = {name: cast("Network", built.networks[name]).eval() for name in found}
        weights = origins(built)
    return Source(
        networks=found,
        heads={name: tuple(each.heads) for name, each in found.items()},
        tokenizer=opened.tokenizer,
        vocabulary=opened.vocabulary,
        length=opened.length,
        longest=min(each.longest(opened.loaded.config.embedding.max_length) for each in found.values()),
        described=described.get(network, {}),
        start=Start(source=str(path), sha256=opened.sums, tokenizer=True),
        weights=weights,
        plugins=opened.loaded.plugins,
    )


def _of_folder(name: str, network: str, beside: Path, seed: int | None) -> Source:
    from electra_lab.pretrained.exported import open_folders

    path = locate(name, beside)
    pair = open_folders(str(path), torch.device("cpu"))
    found = {each: cast("Network", getattr(pair, each)) for each in NETWORKS if getattr(pair, each) is not None}
    folders = {each: path / each if (path / each / CONFIG).is_file() else path for each in found}
    if seed is not None:
        for each, folder in zip(found.values(), folders.values(), strict=True):
            _draw(each, folder, seed)
    files = {f"{folder.name}/{file.name}": file for folder in set(folders.values()) for file in files_of(folder)}
    longest = min(each.longest(_positions(folders[name])) for name, each in found.items())
    return Source(
        networks=found,
        heads={name: tuple(each.heads) for name, each in found.items()},
        tokenizer=pair.tokenizer,
        vocabulary=pair.vocabulary,
        length=pair.length,
        longest=longest,
        described=read_config(folders[network]) if network in folders else {},
        start=Start(source=name, sha256={file: sha256(path) for file, path in files.items()}, tokenizer=True),
        weights=dict.fromkeys(found, f"loaded from {name}" if seed is None else DRAWN),
    )


def _positions(folder: Path) -> int:
    """Return the number of positions of a model that was opened."""
    config = read_config(folder)
    return int(config.get("max_position_embeddings") or config["embedding"]["max_length"])


def _draw(network: Network, folder: Path, seed: int) -> None:
    """Draw all weights of a network from a seed, as a run does. Raises ConfigError for weights of a plug-in."""
    entry = backbones.get((read_config(folder).get("backbone") or {}).get("type", "bert"))
    known = {parameter for module in network.modules() if hasattr(module, "reset_parameters")
             for parameter in module.parameters(recurse=False)}  # fmt: skip
    if not entry.built_in or any(parameter not in known for parameter in network.backbone.parameters()):
        raise ConfigError(
            f"{folder}: not all of its weights can be drawn again. Name the run that it was exported from."
        )
    with torch.random.fork_rng(devices=[]):
        for module in network.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()  # type: ignore[operator]
    initialise(nn.ModuleDict({"discriminator": network}), partial(weights_from, seed))
