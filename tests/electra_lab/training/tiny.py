"""Assembled experiments without dropout, and single steps of them."""

from pathlib import Path
from typing import Any

import torch

from electra_lab.assembly.data import open_data
from electra_lab.assembly.experiment import Experiment, assemble
from electra_lab.config.load import load
from electra_lab.training.step import StepResult, training_step
from tests.helpers import write_experiment

CPU = torch.device("cpu")
DISCRIMINATORS = {
    "bert": "{type: bert, dim: 16, depth: 1, heads: 2, dropout: 0.0}",
    "transformer": "{type: transformer, dim: 16, depth: 1, heads: 2, dropout: 0.0}",
    "reformer": "{type: reformer, dim: 16, depth: 1, heads: 2, bucket_size: 4, hashes: 1, dropout: 0.0}",
}
TRAIN = "{steps: 5, batch_size: 8, precision: fp32}"


def experiment(folder: Path, *overrides: str, **sections: str) -> Experiment:
    sections = {
        "data": f"{{sequence_length: 16, held_out: 0.3, store: {folder / 'store'}}}",
        "embedding": "{dim: 8, max_length: 16, dropout: 0.0}",
        "discriminator": DISCRIMINATORS["bert"],
        "train": TRAIN,
        **sections,
    }
    loaded = load(write_experiment(folder, **sections), list(overrides))
    return assemble(loaded, open_data(loaded, lambda _: None), CPU)


def step(made: Experiment, *, number: int = 0, micro: int = 8, rate: float = 1.0, **options: Any) -> StepResult:
    made.run.learner.objective.train()
    settings: dict[str, Any] = {"seed": 0, "clip_norm": 1.0, "precision": "fp32"}
    batch = made.train.training_batch(0, number, 8, CPU)
    return training_step(
        made.run.learner, made.run.optimizer, batch, step=number, rate=rate, micro_batch_size=micro,
        **(settings | options),
    )  # fmt: skip


def parameters(made: Experiment) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in made.run.learner.objective.named_parameters()}
