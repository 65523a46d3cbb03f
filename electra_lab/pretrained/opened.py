"""A run directory as a model: opened from its own files alone, wherever it is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from electra_lab.assembly.build import build, outline
from electra_lab.config.load import Loaded, kind_of, validated
from electra_lab.config.source import read_file, with_overrides
from electra_lab.data.vocabulary import make_vocabulary
from electra_lab.storage.checkpoint import read_model
from electra_lab.storage.provenance import Provenance
from electra_lab.storage.run_directory import RunDirectory
from registry import Vocabulary
from registry.discovery import already_loaded
from registry.errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Opened:
    """The networks of a run in eval mode, with what they read."""

    directory: RunDirectory
    provenance: Provenance
    loaded: Loaded
    objective: nn.Module
    networks: dict[str, nn.Module]  # `generator`, if there is one, and `discriminator`
    tokenizer: Tokenizer
    vocabulary: Vocabulary
    step: int
    sums: dict[str, str]  # the checksum of the checkpoint's tensors, by the name of their file

    @property
    def length(self) -> int:
        """The longest input: positions beyond the rows of training were never trained."""
        return min(self.loaded.config.data.sequence_length, self.loaded.config.embedding.max_length)


def open_run(path: Path, device: torch.device, step: int | None = None) -> Opened:
    """Open a run directory at a step, by default that of its newest valid checkpoint.

    Corpus, token store and the original plug-in files may be gone. Raises ConfigError, CheckpointError.
    """
    directory, loaded = RunDirectory.open(path), run_config(path)
    tokenizer, counts = directory.tokens()
    vocabulary = make_vocabulary(tokenizer, counts, device)
    saved = read_model(directory.checkpoints, step)
    saved.fill(outline(loaded, vocabulary).learner.objective)  # before memory is asked for
    built = build(loaded, vocabulary)
    objective = built.learner.objective.to(device).eval()
    built.learner.schedules.at_end()
    saved.fill(objective)
    given = (directory, directory.provenance(), loaded, objective, built.networks, tokenizer, vocabulary)
    return Opened(*given, step=saved.step, sums=saved.sums)


def run_config(path: Path) -> Loaded:
    """Read the config of a run, with the plug-ins that it keeps. Raises ConfigError, CheckpointError."""
    directory = RunDirectory.open(path)
    provenance = directory.provenance()
    directory.refuse_other_format(provenance)
    root = read_file(path / "config.yaml")
    if kind_of(root) == "fine-tuning":
        raise ConfigError(
            f"{path}: is a seed of a fine-tuning, not a pre-training run. Open its model/, if it has one."
        )
    imports = json.dumps([str(file) for file in _plugins(directory, provenance)])
    return validated(with_overrides(root, [f"imports={imports}"]))


def _plugins(directory: RunDirectory, provenance: Provenance) -> list[Path]:
    """Return the plug-in files: one of the same content that is loaded, as names are taken once; else the run's copy.

    Those of packages are imported when their components are used.
    """
    own = [code for code in provenance.plugins if code.package is None]
    return [loaded.file if (loaded := already_loaded(code.sha256)) else directory.plugin(code) for code in own]
