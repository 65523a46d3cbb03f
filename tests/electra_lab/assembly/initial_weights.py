"""Experiments that start from models in Hugging Face format, and those models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import ElectraForMaskedLM, ElectraForPreTraining

from electra_lab.assembly.data import open_data
from electra_lab.assembly.experiment import Experiment, assemble, check
from electra_lab.config.load import load
from electra_lab.jobs.pretraining import execute
from electra_lab.model.network import Network
from electra_lab.training.evaluation import evaluate
from registry.errors import ConfigError, DataError, LabError
from tests.electra_lab.jobs.pretraining.tiny import experiment
from tests.electra_lab.model.theirs import model, saved, to_transformers
from tests.helpers import line_of

TOKENS = 89  # of the tokenizer that the tiny experiment trains
SIZES = {"vocab_size": TOKENS, "num_hidden_layers": 1, "max_position_embeddings": 16}
DISCRIMINATOR = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 64, **SIZES}
GENERATOR = {"hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 32, **SIZES}
CPU = torch.device("cpu")
TABLE = "electra.embeddings.word_embeddings.weight"
TIES = ("none", "tokens", "embeddings", "all", "gradient_disentangled", "{layers: 1}")
BOTH = "{discriminator: pair, generator: pair}"
SAME_SIZES = {"generator": "{scale: 1.0}"}


def write(folder: Path, *, tie: str = "none", **sections: str) -> Path:
    """Write the experiment whose networks have those sizes, without dropout."""
    given = {
        "embedding": f"{{dim: 8, max_length: 16, tie: {tie}, dropout: 0.0}}",
        "discriminator": "{type: bert, dim: 16, depth: 1, heads: 2, dropout: 0.0}",
        "train": "{steps: 3, batch_size: 4, precision: fp32}", "evaluate": "{examples: 0}", "checkpoint": "{every: 2}",
    }  # fmt: skip
    return experiment(folder, **(given | sections))


def made(file: Path, *overrides: str) -> Experiment:
    loaded = load(file, list(overrides))
    return assemble(loaded, open_data(loaded, lambda _: None), CPU)


def discriminator(folder: Path, **options: Any) -> Any:
    theirs = model(ElectraForPreTraining, **{**DISCRIMINATOR, **options})
    saved(theirs, folder)
    return theirs


def generator(folder: Path, embeddings_of: Any = None, **options: Any) -> Any:
    """Save a generator of transformers, with the embeddings of a discriminator."""
    theirs = model(ElectraForMaskedLM, seed=1, **{**GENERATOR, **options})
    if embeddings_of is not None:
        share(theirs, embeddings_of)
    saved(theirs, folder)
    return theirs


def share(generator: Any, discriminator: Any) -> None:
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight


def networks(experiment: Experiment) -> dict[str, Network]:
    objective: Any = experiment.run.learner.objective
    return {name: getattr(objective, name) for name in ("generator", "discriminator") if hasattr(objective, name)}


def weights(network: Network) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in to_transformers(network).items()}


def validated(experiment: Experiment) -> dict[str, float]:
    settings = experiment.settings
    return evaluate(
        experiment.run.learner, experiment.validation, experiment.accumulate, seed=settings.seed,
        batch_size=settings.evaluate_batch_size, precision=settings.precision, device=CPU,
    ).metrics  # fmt: skip


def files(folder: Path, *names: str) -> dict[str, dict[str, torch.Tensor]]:
    both = ("discriminator", "generator")
    return {name: load_file(folder / "pair" / name / "model.safetensors") for name in names or both}


def resaved(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    file = folder / "model.safetensors"
    given = load_file(file)
    change(given)
    save_file(given, file)


def refusal(file: Path, kind: type[LabError] = ConfigError, key: str = "discriminator") -> str:
    """Return the refusal of check, dry run and run without its location. `check` returns missing data as a note."""
    loaded = load(file)
    said = set()
    if kind is DataError:
        said.add(str(check(loaded)))
    else:
        for look in (lambda: check(loaded), lambda: execute.dry_run(file, [], None, "cpu")):
            with pytest.raises(kind) as refused:
                look()
            said.add(str(refused.value))
    with pytest.raises(kind) as refused:
        execute.run(file, [], file.parent / "refused", "cpu")
    (sentence,) = said | {str(refused.value)}
    assert not (file.parent / "refused").exists()
    place = f"{file}:{line_of('init', file.read_text())}: init.{key}: "
    assert sentence.startswith(place), sentence
    return sentence.removeprefix(place)
