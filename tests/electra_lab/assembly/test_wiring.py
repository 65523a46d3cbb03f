"""Every key reaches what it controls: weights against torch's own optimizers, records and files against the file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab.config.schema import Evaluate, Process, Train
from electra_lab.config.sections import Checkpoint
from tests.electra_lab.assembly.key_checks import OTHERS
from tests.electra_lab.assembly.plain_loop import adafactor, adamw, at, by_hand, equal, file_in, overrides
from tests.electra_lab.jobs.pretraining.tiny import for_a_module, run, tensors

# Checked with others of OTHERS, by the tests of jobs (checkpoints, divergence), or with several processes.
SHARED = {
    "train.epochs", "train.batch_warmup", "train.flops", "train.paper_flops", "train.log_every", "train.parallel",
    "train.on_non_finite", "train.spike", "train.most_rollbacks", "run.max_minutes", "evaluate.test_tokens",
    "evaluate.at_start", "evaluate.every", "evaluate.batch_size", "evaluate.examples", "checkpoint.asynchronous",
    "checkpoint.every", "checkpoint.keep", "checkpoint.minutes", "checkpoint.milestones", "checkpoint.best",
}  # fmt: skip
WARM = {f"schedules.learning_rate.{key}": None for key in ("type", "start", "end")}  # back to the default schedule
ADAFACTOR = {"optimizer": "{type: adafactor}", "train.learning_rate": 0.05}


# Keys, with the changes that set them, and the plain loop that they should be equal to. That an optimizer or a schedule
# does what its other options say is the matter of its own tests; here some show that options arrive.
WEIGHTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "train.steps": ({"train.steps": 2}, {"steps": 2}),
    "train.batch_size": ({"train.batch_size": 6}, {"batch": 6}),
    "train.learning_rate": ({"train.learning_rate": 0.05}, {"optimizer": adamw(lr=0.05)}),
    "train.clip_norm": ({"train.clip_norm": 0.5}, {"clip": 0.5}),
    "train.generator_rate": ({"train.generator_rate": 0.3}, {"networks": (at(0.3), at(1.0))}),
    "train.clip": ({"train.clip": "per_network", "train.clip_norm": 0.5}, {"clip": 0.5, "networks": (at(1.0),) * 2}),
    "optimizer.adamw.weight_decay": ({"optimizer.weight_decay": 0.9}, {"optimizer": adamw(weight_decay=0.9)}),
    "optimizer.adamw.betas": ({"optimizer.betas": [0.5, 0.7]}, {"optimizer": adamw(betas=(0.5, 0.7))}),
    "optimizer.type": (ADAFACTOR, {"optimizer": adafactor()}),
    "schedules.exponential.rate": (
        {"schedules": "{train.generator_rate: {type: exponential, start: 0.1, end: 2.0, rate: 3.0}}"},
        {"networks": (lambda step, steps: 2.0 - 1.9 * math.exp(-3.0 * step / (steps - 1)), at(1.0))}),
    "schedules.warmup_linear.warmup_steps": (
        {**WARM, "schedules.learning_rate.warmup_steps": 3},
        {"rates": lambda step, steps: (1 - step / steps) * min(1.0, (step + 1) / 3)}),
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("no_report")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """The experiment, and its weights without any change."""
    file = file_in(tmp_path_factory.mktemp("wiring"))
    with for_a_module():
        return file, by_hand(file)


def test_without_a_change_training_is_the_plain_loop(plain: Any, tmp_path: Path) -> None:
    file, weights = plain
    assert equal(weights, tensors(run(file, tmp_path / "run", *overrides({}))))


@pytest.mark.parametrize("key", WEIGHTS)
def test_a_key_changes_the_weights_as_the_plain_loop_does(plain: Any, tmp_path: Path, key: str) -> None:
    file, unchanged = plain
    changes, options = WEIGHTS[key]
    got = tensors(run(file, tmp_path / "run", *overrides(changes)))
    assert equal(by_hand(file, **options), got)
    assert not equal(unchanged, got), "the key makes no difference here"


# What does not show in the weights of a plain loop


@pytest.mark.parametrize("key", OTHERS)
def test_a_key_does_what_it_says(plain: Any, tmp_path: Path, key: str) -> None:
    OTHERS[key](plain[0], tmp_path / "run")


def test_no_key_is_left_out() -> None:
    expected = set[str]()
    for section, model in (("train", Train), ("evaluate", Evaluate), ("checkpoint", Checkpoint), ("run", Process)):
        expected |= {f"{section}.{key}" for key in model.model_fields}
    listed = WEIGHTS.keys() | OTHERS.keys() | SHARED
    assert {key for key in listed if not key.startswith(("optimizer.", "schedules."))} == expected
