"""Every key reaches what it controls: weights against torch's own optimizers, records and files against the file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab.config.schema import Checkpoint, Evaluate, Process, Train
from electra_lab.jobs.pretraining import execute
from registry import optimizers, schedules
from tests.electra_lab.assembly.key_checks import OTHERS
from tests.electra_lab.assembly.plain_loop import (
    adafactor,
    adamw,
    apart,
    by_hand,
    equal,
    file_in,
    muon,
    overrides,
    uncorrected,
)
from tests.electra_lab.jobs.pretraining.tiny import for_a_module, run, tensors

WARM = {f"schedules.learning_rate.{key}": None for key in ("type", "start", "end")}  # back to the default schedule
SLOPE = {"schedules.learning_rate.start": 1.0, "schedules.learning_rate.end": 0.0}
ADAFACTOR = {"optimizer": "{type: adafactor}", "train.learning_rate": 0.05}
UNCORRECTED = {"optimizer": "{type: adamw_no_bias_correction, epsilon: 0.01, weight_decay: 0.0}"}
MUON = {"optimizer": "{type: muon, epsilon: 0.01, weight_decay: 0.0}"}
CONSTANT = {**WARM, "schedules.learning_rate.type": "constant"}
STABLE = {**WARM, "schedules.learning_rate.type": "warmup_stable_decay", "schedules.learning_rate.warmup_steps": 0}


def half_cosine(step: int, steps: int) -> float:
    return (1 + math.cos(math.pi * step / (steps - 1))) / 2


# Keys, with the changes that set them, and the plain loop that they should be equal to.
WEIGHTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "train.steps": ({"train.steps": 2}, {"steps": 2}),
    "train.batch_size": ({"train.batch_size": 6}, {"batch": 6}),
    "train.learning_rate": ({"train.learning_rate": 0.05}, {"optimizer": adamw(lr=0.05)}),
    "train.clip_norm": ({"train.clip_norm": 0.5}, {"clip": 0.5}),
    "optimizer.adamw.weight_decay": ({"optimizer.weight_decay": 0.9}, {"optimizer": adamw(weight_decay=0.9)}),
    "optimizer.adamw.betas": ({"optimizer.betas": [0.5, 0.7]}, {"optimizer": adamw(betas=(0.5, 0.7))}),
    "optimizer.adamw.epsilon": ({"optimizer.epsilon": 1.0}, {"optimizer": adamw(eps=1.0)}),
    "optimizer.type": (ADAFACTOR, {"optimizer": adafactor()}),
    "optimizer.adafactor.weight_decay": (
        {**ADAFACTOR, "optimizer.weight_decay": 0.9}, {"optimizer": adafactor(weight_decay=0.9)}),
    "optimizer.adafactor.decay": (
        {**ADAFACTOR, "optimizer.decay": -0.2}, {"optimizer": adafactor(beta2_decay=-0.2)}),
    "optimizer.adafactor.epsilon": (
        {**ADAFACTOR, "optimizer.epsilon": 0.1}, {"optimizer": adafactor(eps=(None, 0.1))}),
    "optimizer.adafactor.clip": ({**ADAFACTOR, "optimizer.clip": 1.2}, {"optimizer": adafactor(d=1.2)}),
    "optimizer.adamw_no_bias_correction.weight_decay": (
        {**UNCORRECTED, "optimizer.weight_decay": 0.9}, {"optimizer": uncorrected(weight_decay=0.9)}),
    "optimizer.adamw_no_bias_correction.betas": (
        {**UNCORRECTED, "optimizer.betas": [0.5, 0.7]}, {"optimizer": uncorrected(betas=(0.5, 0.7))}),
    "optimizer.adamw_no_bias_correction.epsilon": (
        {**UNCORRECTED, "optimizer.epsilon": 1.0}, {"optimizer": uncorrected(eps=1.0)}),
    "optimizer.muon.momentum": ({**MUON, "optimizer.momentum": 0.2}, {"optimizer": muon(momentum=0.2)}),
    "optimizer.muon.nesterov": ({**MUON, "optimizer.nesterov": False}, {"optimizer": muon(nesterov=False)}),
    "optimizer.muon.ns_steps": ({**MUON, "optimizer.ns_steps": 1}, {"optimizer": muon(ns_steps=1)}),
    "optimizer.muon.adjust_lr_fn": (
        {**MUON, "optimizer.adjust_lr_fn": "original"}, {"optimizer": muon(adjust_lr_fn="original")}),
    "optimizer.muon.weight_decay": ({**MUON, "optimizer.weight_decay": 0.9}, {"optimizer": muon(weight_decay=0.9)}),
    "optimizer.muon.adamw_scale": ({**MUON, "optimizer.adamw_scale": 0.2}, {"optimizer": muon(adamw_scale=0.2)}),
    "optimizer.muon.betas": ({**MUON, "optimizer.betas": [0.5, 0.7]}, {"optimizer": muon(betas=(0.5, 0.7))}),
    "optimizer.muon.epsilon": ({**MUON, "optimizer.epsilon": 1.0}, {"optimizer": muon(eps=1.0)}),
    "schedules.linear.start": (
        {"schedules.learning_rate.start": 3.0}, {"rates": lambda step, steps: 3.0 - 2.0 * step / (steps - 1)}),
    "schedules.linear.end": (
        {"schedules.learning_rate.end": 0.25}, {"rates": lambda step, steps: 1.0 - 0.75 * step / (steps - 1)}),
    "schedules.linear.until": (
        {**SLOPE, "schedules.learning_rate.until": 0.5},
        {"rates": lambda step, steps: max(0.0, 1 - 2 * step / (steps - 1))}),
    "schedules.cosine.start": (
        {**SLOPE, "schedules.learning_rate.type": "cosine"}, {"rates": half_cosine}),
    "schedules.cosine.end": (
        {**SLOPE, "schedules.learning_rate.type": "cosine", "schedules.learning_rate.end": 0.5},
        {"rates": lambda step, steps: 0.5 + 0.5 * half_cosine(step, steps)}),
    "schedules.cosine.until": (
        {**SLOPE, "schedules.learning_rate.type": "cosine", "schedules.learning_rate.until": 0.5},
        {"rates": lambda step, steps: half_cosine(min(2 * step, steps - 1), steps)}),
    "schedules.warmup_linear.warmup_steps": (
        {**WARM, "schedules.learning_rate.warmup_steps": 3},
        {"rates": lambda step, steps: (1 - step / steps) * min(1.0, (step + 1) / 3)}),
    "schedules.warmup_linear.warmup_share": (
        {**WARM, "schedules.learning_rate.warmup_share": 0.5},
        {"rates": lambda step, steps: (1 - step / steps) * min(1.0, (step + 1) / (steps / 2))}),
    "schedules.constant.warmup_steps": (
        {**CONSTANT, "schedules.learning_rate.warmup_steps": 3}, {"rates": lambda step, _: min(1.0, (step + 1) / 3)}),
    "schedules.constant.warmup_share": (
        {**CONSTANT, "schedules.learning_rate.warmup_share": 0.5}, {"rates": lambda step, _: min(1.0, (step + 1) / 2)}),
    "schedules.warmup_stable_decay.warmup_steps": (
        {**STABLE, "schedules.learning_rate.warmup_steps": 2}, {"rates": lambda step, _: [0.5, 1.0, 1.0, 1.0][step]}),
    "schedules.warmup_stable_decay.warmup_share": (
        {**STABLE, "schedules.learning_rate.warmup_share": 0.5}, {"rates": lambda step, _: [0.5, 1.0, 1.0, 1.0][step]}),
    "schedules.warmup_stable_decay.decay_share": (
        {**STABLE, "schedules.learning_rate.decay_share": 0.5}, {"rates": lambda step, _: [1.0, 1.0, 1.0, 0.5][step]}),
    "schedules.warmup_stable_decay.decay_steps": (
        {**STABLE, "schedules.learning_rate.decay_steps": 4}, {"rates": lambda step, _: 1.0 - step / 4}),
    "schedules.warmup_stable_decay.shape": (
        {**STABLE, "schedules.learning_rate.decay_steps": 4, "schedules.learning_rate.shape": "1-sqrt"},
        {"rates": lambda step, _: 1.0 - math.sqrt(step / 4)}),
    "schedules.warmup_stable_decay.end": (
        {**STABLE, "schedules.learning_rate.decay_steps": 4, "schedules.learning_rate.end": 0.6},
        {"rates": lambda step, _: 1.0 - 0.4 * step / 4}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "write_report", lambda directory: directory.path)


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
    if changes.get("optimizer") == MUON["optimizer"]:  # it iterates in bf16, which magnifies differences of rounding
        assert apart(by_hand(file, **options), got) < 0.3 * apart(by_hand(file, optimizer=muon()), got)
        return
    assert equal(by_hand(file, **options), got)
    assert not equal(unchanged, got), "the key makes no difference here"
    for optimizer, made in ((ADAFACTOR, adafactor), (UNCORRECTED, uncorrected)):
        if changes != optimizer and changes.get("optimizer") == optimizer["optimizer"]:
            assert not equal(by_hand(file, optimizer=made()), got), "the key makes no difference here"


# What does not show in the weights of a plain loop


@pytest.mark.parametrize("key", OTHERS)
def test_a_key_does_what_it_says(plain: Any, tmp_path: Path, key: str) -> None:
    OTHERS[key](plain[0], tmp_path / "run")


def test_no_key_is_left_out() -> None:
    """A new key, optimizer or schedule needs a line in one of the tables."""
    expected = {"optimizer.type"}
    sections = (("train", Train), ("evaluate", Evaluate), ("checkpoint", Checkpoint), ("run", Process))
    for section, model in sections:
        expected |= {f"{section}.{key}" for key in model.model_fields}
    for section, registry in (("optimizer", optimizers), ("schedules", schedules)):
        expected |= {f"{section}.{n}.{key}" for n in registry.names() for key in registry.get(n).schema.model_fields}
    assert WEIGHTS.keys() | OTHERS.keys() == expected
