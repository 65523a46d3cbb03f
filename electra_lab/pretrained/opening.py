"""From a path or a name to a trained model; run directories are read from their own files alone, wherever they are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import AfterValidator, Field
from torch import Tensor

from electra_lab.config.finetune import FinetuningConfig
from electra_lab.config.load import Loaded, validated, validated_as
from electra_lab.config.source import read_file
from electra_lab.model.weights import TABLE, head_of
from electra_lab.pretrained.hugging_face import read_folders
from electra_lab.pretrained.trained_model import NETWORKS, Origin, Part, TrainedModel, TunedSeed
from electra_lab.storage.checkpoint import read_model
from electra_lab.storage.files import config_of, damage
from electra_lab.storage.finetuning_folder import MODEL, FinetuningFolder, is_finetuning, is_seed
from electra_lab.storage.provenance import Provenance
from electra_lab.storage.records import Step
from electra_lab.storage.run_directory import RunDirectory, is_run
from registry import Plugin, backbones
from registry.discovery import load_plugin, packaged
from registry.errors import CheckpointError, ConfigError, DataError, command
from registry.signature import Strict

# The names of the tensors that both networks share, by embedding.tie; a checkpoint has them once.
SHARED = {"none": (), "tokens": (TABLE,), "embeddings": ("embeddings.",), "all": ("",), "gradient_disentangled": ()}


def open_model(
    source: str | Path, *, step: Step = None, base: Path | None = None, network: str | None = None, plugins: bool = True
) -> TrainedModel:
    """Open a trained model: a run directory, a fine-tuning or one of its seeds, an export, or a model of transformers.

    source   a folder, or a name on the Hugging Face hub, which is downloaded once
    step     checkpoint of a run directory, or "best"; by default the newest
    base     the folder of relative paths, by default the working directory
    network  network to read, if they are in separate folders; by default all
    plugins  True to load the plug-ins of a run, without which its networks may not be built

    Raises ConfigError, DataError, CheckpointError.
    """
    name = os.path.expanduser(source)
    path = Path(name) if base is None else base / name
    if is_finetuning(path) or is_seed(path):
        name = str(model_of_finetuning(path))
    elif is_run(path):
        return read_run(path, step, plugins=plugins)
    if step is not None:
        kind = "best checkpoint" if step == "best" else f"step {step}"
        raise ConfigError(f"{source}: is not a run directory, so it has no {kind}.")
    return read_folders(name, base, network)


def read_run(path: Path, step: Step = None, *, plugins: bool = True) -> TrainedModel:
    """Open a run directory at a step, by default that of its newest valid checkpoint; "best" is that of `best_step`.

    Corpus, token store and the original plug-in files may be gone. Raises ConfigError, CheckpointError.
    """
    # Read each file once.
    directory = RunDirectory.open(path)
    provenance = _provenance(directory)
    config = plain_config(path)
    loaded = [load_plugin(file) for file in _plugin_files(directory, provenance)] if plugins else []
    tokenizer, counts = directory.tokens()
    saved = read_model(directory.checkpoints, _best_step(directory) if step == "best" else step)
    if not any(name.startswith("discriminator.") for name in saved.tensors):
        reason = "has no discriminator: the objective of its run has to keep it as self.discriminator."
        raise CheckpointError(f"{saved.path}: {reason}")

    # Take the parts that describe the networks.
    try:
        embedding = {key: config["embedding"][key] for key in ("dim", "max_length", "dropout")}
        sections = {name: dict(config[name]) for name in NETWORKS if name == "discriminator" or config.get(name)}
        tensors = _by_network(saved.tensors, config["embedding"]["tie"])
        length = min(config["data"]["sequence_length"], embedding["max_length"])
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ConfigError(f"{path / 'config.yaml'}: is not a complete experiment.") from None

    # Put each network together; a plug-in has the name that its file had when the run began.
    parts, names = {}, {code.sha256: Path(code.file).name for code in provenance.plugins}
    for name, section in sections.items():
        plugin = _plugin_of(section, loaded) if plugins and provenance.plugins else None
        if plugin and plugin.package:
            loaded.append(plugin)
        parts[name] = Part(
            name=name,
            path=saved.path,
            format="run",
            backbone=section,
            embedding=embedding,
            vocabulary_size=tokenizer.get_vocab_size(),
            tensors=tensors[name],
            files=dict(saved.sums),
            plugin=(plugin.package or names.get(plugin.sha256, plugin.file.name)) if plugin else None,
            plugin_source=b"" if plugin is None or plugin.package else plugin.source,
        )
    others = tuple(sorted(name for name in saved.tensors if name.split(".")[0] not in NETWORKS))
    run = Origin(directory, provenance, config, saved.step, others)
    return TrainedModel(str(path), parts, tokenizer, length, counts, tuple(dict.fromkeys(loaded)), run)


def _is_known(backbone: dict[str, Any]) -> dict[str, Any]:
    if backbone.get("type") not in backbones.names() or "dim" not in backbone:
        raise ValueError("describes no backbone")
    return backbone


class _Network(Strict):
    """The description of a seed's network in provenance.json."""

    backbone: Annotated[dict[str, Any], AfterValidator(_is_known)]
    embedding: dict[str, Any]
    vocab_size: Annotated[int, Field(ge=1)]
    length: Annotated[int, Field(ge=3)]  # [CLS], a token, [SEP]


def read_seed(folder: FinetuningFolder, seed: int) -> TrainedModel:
    """Open a finished seed of a fine-tuning, with the weights that its results are about.

    Its pre-trained model may be gone. Raises ConfigError, CheckpointError.
    """
    directory, results = folder.seed(seed), folder.results(seed)
    if results is None:
        raise ConfigError(f"{directory.path}: is not finished. Continue with: {command('resume', folder.path)}")
    config, provenance = finetuned_config(directory.path).config, directory.provenance()
    if not config.trains:
        raise ConfigError(f"{folder.path}: {config.task.type} trains nothing, so there is nothing to predict with.")
    tokenizer, counts = directory.tokens()
    saved = read_model(directory.checkpoints, results.step)
    try:
        described, facts = ((provenance.model_extra or {})[key] for key in ("network", "facts"))
        network = _Network.model_validate(described)
        part = Part(
            name="discriminator",
            path=saved.path,
            format="seed",
            backbone=network.backbone,
            embedding=network.embedding,
            vocabulary_size=network.vocab_size,
            tensors={name.removeprefix("network."): tensor for name, tensor in saved.tensors.items()},
            files=dict(saved.sums),
        )
        tuned = TunedSeed(config, dict(facts))
    except (KeyError, TypeError, ValueError) as error:
        reason = f"does not describe its model ({type(error).__name__}: {' '.join(str(error).split())})"
        raise CheckpointError(f"{directory.path / 'provenance.json'}: {reason}.") from None
    return TrainedModel(str(directory.path), {part.name: part}, tokenizer, network.length, counts, tuned=tuned)


def run_config(path: Path) -> Loaded:
    """Validate the config of a run, with the plug-ins that it keeps. Raises ConfigError, CheckpointError."""
    directory = RunDirectory.open(path)
    _provenance(directory)
    root = read_file(path / "config.yaml")
    _refuse_others(path, root.plain())
    return validated(root)


def finetuned_config(path: Path) -> Loaded[FinetuningConfig]:
    """Validate the config of a seed of a fine-tuning, with the plug-ins that it keeps, also those of its model."""
    directory = RunDirectory.open(path)
    for file in _plugin_files(directory, _provenance(directory)):
        load_plugin(file)
    directory.refuse_other_config()
    return validated_as(FinetuningConfig, read_file(path / "config.yaml"))


def plain_config(path: Path) -> dict[str, Any]:
    """Return the config.yaml of a run as plain data. Raises ConfigError."""
    config = read_file(path / "config.yaml").plain()
    _refuse_others(path, config)
    return cast("dict[str, Any]", config)


def _refuse_others(path: Path, config: Any) -> None:
    """Raise ConfigError for the config of another kind of job, and for one that has changed since the run began."""
    if not isinstance(config, dict):
        raise ConfigError(f"{path / 'config.yaml'}: is not a complete experiment.")
    if "task" in config:
        raise ConfigError(f"{path}: is a seed of a fine-tuning, not a pre-training run. Name its fine-tuning.")
    RunDirectory(path).refuse_other_config()


def config_with(path: Path, network: str) -> dict[str, Any]:
    """Return the config of a run; the section of a generator that it lacks is that of its model. Raises DataError."""
    if not (path / "config.yaml").is_file() or not any((path / "checkpoints").glob("step-*")):
        raise DataError(f"{path} is not a run directory with a checkpoint.")
    config = plain_config(path)
    config[network] = config.get(network) or config.get("discriminator")
    return config


def model_of_finetuning(path: Path) -> Path:
    """Return the folder of the model that a fine-tuning, or one of its seeds, has saved.

    Raises ConfigError if it has none, or several.
    """
    folder = FinetuningFolder(path if is_finetuning(path) else path.parent)
    seeds = [folder.seed(seed).path for seed in folder.seeds()] if folder.path == path else [path]
    models = [seed / "model" for seed in seeds if (seed / "model").is_dir()]
    if not models:
        task = config_of(folder.path / "finetuning.yaml")["task"]
        raise ConfigError(
            f"{path}: is a fine-tuning that has saved no model for transformers, which has no class with the layers of "
            f"its task. Use it with {command('predict', path, 'TEXT')}, or fine-tune with an option of {task['type']} "
            f"that has one, such as head: transformers ({command('registry', 'describe', 'tasks', task['type'])})."
        )
    if len(models) > 1:
        raise ConfigError(f"{path}: has {len(models)} models, one for each seed. Name one of them: {models[0]}")
    folder.refuse_other_file(int(models[0].parent.resolve().name.removeprefix("seed-")), MODEL)
    if reason := damage(models[0]):
        raise CheckpointError(f"{models[0]}: {reason}. Delete results.json of the seed and resume.")
    return models[0]


def _provenance(directory: RunDirectory) -> Provenance:
    provenance = directory.provenance()
    directory.refuse_other_format(provenance)
    return provenance


def _best_step(directory: RunDirectory) -> int:
    """Return the step of the best checkpoint. Raises CheckpointError if the run keeps none."""
    if (best := directory.best_checkpoint()) is None:
        raise CheckpointError(
            f"{directory.path}: keeps no best checkpoint: none of its checkpoints has a validation value of the metric "
            "in checkpoint.best. Set evaluate.every and checkpoint.best before training; until then, name a step."
        )
    return best.step


def _plugin_files(directory: RunDirectory, provenance: Provenance) -> list[Path]:
    """Return the copies of plug-in files; plug-ins of packages are imported when their components are used."""
    return [directory.plugin(code) for code in provenance.plugins if code.package is None]


def _plugin_of(section: Mapping[str, Any], plugins: list[Plugin]) -> Plugin | None:
    """Return the plug-in that defines a backbone; None for one of the lab."""
    if "dim" not in section:
        return None
    entry = backbones.get(section["type"])
    if entry.package:
        return packaged(entry)
    return next((plugin for plugin in plugins if plugin.file == entry.file), None)


def _by_network(saved: Mapping[str, Tensor], tie: Any) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of each network, complete: a checkpoint has shared ones under the first network alone."""
    parts: dict[str, dict[str, Tensor]] = {name: {} for name in NETWORKS}
    for name, tensor in saved.items():
        network, _, rest = name.partition(".")
        if network in parts:
            parts[network][rest] = tensor
    discriminator, generator = parts["discriminator"], parts["generator"]
    if "embeddings.tokens.difference.weight" in discriminator:  # tie: gradient_disentangled
        table = discriminator.pop("embeddings.tokens.table.weight", generator.get(TABLE))
        assert table is not None
        generator.setdefault(TABLE, table)
        discriminator[TABLE] = table + discriminator.pop("embeddings.tokens.difference.weight")
    if generator and not isinstance(tie, str):  # the lowest layers, of which only the generator's are in a checkpoint
        shared = {name: tensor for name, tensor in generator.items() if not head_of(name)}
        parts["discriminator"] = {**shared, **discriminator}
    elif generator and SHARED[tie]:
        for name, tensor in generator.items():
            if name.startswith(SHARED[tie]) and not head_of(name):
                discriminator.setdefault(name, tensor)
        for name, tensor in discriminator.items():
            if name.startswith(SHARED[tie]) and not head_of(name):
                generator.setdefault(name, tensor)
    return parts
