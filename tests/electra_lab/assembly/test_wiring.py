"""Every key reaches what it controls: weights against torch's own optimizers, records and files against the file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch._dynamo.utils import counters

from electra_lab.assembly.experiment import assemble, open_data
from electra_lab.backbones import bert
from electra_lab.config.load import load
from electra_lab.config.schema import Checkpoint, Evaluate, Process, Train
from electra_lab.runs import execute, saving
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training import compilation, recompute, trouble
from registry import optimizers, schedules
from registry.errors import DivergedError, Preempted
from tests.electra_lab.assembly.plain_loop import (
    BATCH,
    LENGTH,
    STEPS,
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
from tests.electra_lab.runs.tiny import for_a_module, lines, passes, run, tensors

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


# What does not show in the weights of a plain loop.


def seen(file: Path, out: Path, changes: dict[str, Any]) -> tuple[Path, list[Any], list[Any]]:
    """Return the run, and what its objective saw in training and in evaluation."""
    path = run(file, out, *overrides(changes))
    found = passes()
    return path, [p for p in found if p.training], [p for p in found if p.evaluating]


def check_micro_batch_size(file: Path, out: Path) -> None:
    path, training, _ = seen(file, out, {"train.micro_batch_size": 2})
    assert [len(p.examples) for p in training] == [2] * (STEPS * BATCH // 2)
    assert [p.examples for p in training[:2]] == [[0, 1], [2, 3]]
    assert equal(by_hand(file), tensors(path))


def check_parallel(file: Path, out: Path) -> None:
    """In one process nothing is shared; several are the matter of tests/electra_lab/parallel."""
    path, _, _ = seen(file, out, {"train.parallel": "fsdp"})
    assert equal(by_hand(file), tensors(path))


def check_compile(file: Path, out: Path) -> None:
    """By a backend that only records what it is given; the numbers are the matter of training/test_compilation.py."""
    with patch.object(compilation, "BACKEND", "eager"), redirect_stderr(StringIO()) as printed:
        torch._dynamo.reset()
        counters.clear()
        path, _, _ = seen(file, out, {"train.compile": "layers"})
    assert counters["stats"]["unique_graphs"]
    assert RunDirectory.open(path).provenance().environment.compile == "layers"
    assert re.search(r"^compiled in \d+ s$", printed.getvalue(), re.MULTILINE)
    assert equal(by_hand(file), tensors(path)), "the warm-up must leave nothing behind"
    counters.clear()
    seen(file, out.with_name("off"), {"train.compile": "off"})
    assert not counters["stats"]


def check_precision(file: Path, out: Path) -> None:
    path, training, evaluated = seen(file, out, {"train.precision": "bf16"})
    assert {p.autocast for p in training + evaluated} == {True}
    in_bf16, in_fp32 = by_hand(file, bf16=True), by_hand(file)
    got = tensors(path)
    name = "model.discriminator.backbone.layers.0.expand.weight"
    assert (got[name] - in_bf16[name]).norm() < 0.1 * (got[name] - in_fp32[name]).norm()
    path, training, evaluated = seen(file, out.with_name("fp32"), {"train.precision": "fp32"})
    assert {p.autocast for p in training + evaluated} == {False}


def check_attention(file: Path, out: Path) -> None:
    with patch.object(bert, "attend", wraps=bert.attend) as attending:
        path, _, _ = seen(file, out, {"train.attention": "products"})
    assert attending.call_args_list[-1].args[-1] == "products"
    assert RunDirectory.open(path).provenance().environment.attention == "products"
    assert equal(by_hand(file), tensors(path))


def check_activation_checkpointing(file: Path, out: Path) -> None:
    with patch.object(recompute, "checkpoint", wraps=recompute.checkpoint) as again:
        path, _, _ = seen(file, out, {"train.activation_checkpointing": True})
    assert again.call_count >= 2 * STEPS, "two networks of one layer each"
    assert equal(by_hand(file), tensors(path))


def check_tokens(file: Path, out: Path) -> None:
    path, _, _ = seen(file, out, {"train.steps": None, "train.tokens": 3.5 * BATCH * LENGTH})
    assert [(line["step"], line["tokens"]) for line in lines(path, "train")] == [(3, 3 * BATCH * LENGTH)]


def check_flops(file: Path, out: Path) -> None:
    flops = assemble_flops(file)
    path, _, _ = seen(file, out, {"train.steps": None, "train.flops": 2.9 * flops})
    assert [(line["step"], line["flops"]) for line in lines(path, "train")] == [(2, 2 * flops)]


def check_paper_flops(file: Path, out: Path) -> None:
    loaded = load(file, overrides({}))
    made = assemble(loaded, open_data(loaded, lambda _: None), torch.device("cpu"))
    flops = made.paper_flops // made.settings.steps
    path, _, _ = seen(file, out, {"train.steps": None, "train.paper_flops": 2.9 * flops})
    assert [line["step"] for line in lines(path, "train")] == [2]
    assert RunDirectory(path).provenance().paper_flops == 2 * flops


def assemble_flops(file: Path) -> int:
    loaded = load(file, overrides({}))
    return assemble(loaded, open_data(loaded, lambda _: None), torch.device("cpu")).settings.flops.per_step


def check_log_every(file: Path, out: Path) -> None:
    path, _, _ = seen(file, out, {"train.steps": 7, "train.log_every": 3})
    assert [line["step"] for line in lines(path, "train")] == [3, 6, 7]


def check_on_non_finite(file: Path, out: Path) -> None:
    poisoned = {"objective.poison": 1, "train.log_every": 2}
    with pytest.raises(DivergedError):
        seen(file, out, poisoned)
    path, _, _ = seen(file, out.with_name("skip"), {**poisoned, "train.on_non_finite": "skip"})
    assert [line["skipped_steps"] for line in lines(path, "train")] == [1, 1]


def check_skip_limit(file: Path, out: Path) -> None:
    spiky = {"train.steps": 20, "train.log_every": 20, "train.spike": 1.0001, "train.on_non_finite": "skip"}
    with patch.object(trouble, "LEAD", 1):
        path, _, _ = seen(file, out, spiky)
        skipped = lines(path, "train")[-1]["skipped_steps"]
        seen(file, out.with_name("just"), {**spiky, "train.skip_limit": skipped})
        with pytest.raises(DivergedError, match=f"{skipped} in all, more than train.skip_limit"):
            seen(file, out.with_name("more"), {**spiky, "train.skip_limit": skipped - 1})


def check_most_rollbacks(file: Path, out: Path) -> None:
    poisoned = {"objective.poison": 2, "train.on_non_finite": "roll_back", "checkpoint.every": 1}
    for most in (1, 2):
        with pytest.raises(DivergedError, match=f"rolled back {most} times"):
            seen(file, out.with_name(str(most)), {**poisoned, "train.most_rollbacks": most})


def check_spike(file: Path, out: Path) -> None:
    with patch.object(trouble, "LEAD", 1):
        path, _, _ = seen(file, out, {"train.spike": 1e6})
        assert equal(by_hand(file), tensors(path))
        path, _, _ = seen(file, out.with_name("small"), {"train.spike": 1.0001, "train.on_non_finite": "skip"})
    assert lines(path, "train")[-1]["skipped_steps"] > 0


def check_evaluate_every(file: Path, out: Path) -> None:
    path, _, evaluated = seen(file, out, {"train.steps": 7, "evaluate.every": 3})
    assert [line["step"] for line in lines(path, "validation")] == [3, 6, 7]
    assert len({p.step for p in evaluated}) == 3


def check_evaluate_batch_size(file: Path, out: Path) -> None:
    _, _, evaluated = seen(file, out, {"evaluate.batch_size": 3})
    sizes = [len(p.examples) for p in evaluated]
    assert max(sizes) == 3
    assert sum(size < 3 for size in sizes) <= 2  # the last of validation, and of the test


def check_evaluate_tokens(file: Path, out: Path) -> None:
    check_amount(file, out, "tokens", "validation")


def check_evaluate_test_tokens(file: Path, out: Path) -> None:
    check_amount(file, out, "test_tokens", "test")


def check_amount(file: Path, out: Path, key: str, split: str) -> None:
    """Two rows of 16 tokens; the other split is read as before."""
    path, _, _ = seen(file, out, {f"evaluate.{key}": 32})
    read = {record["split"]: record["tokens"] for record in lines(path) if record["split"] != "train"}
    assert read.pop(split) == 32
    assert min(read.values()) > 32


def check_evaluate_examples(file: Path, out: Path) -> None:
    path, _, _ = seen(file, out, {"evaluate.examples": 2})
    assert len(json.loads((path / "examples.json").read_text())) == 2
    path, _, _ = seen(file, out.with_name("none"), {"evaluate.examples": 0})
    assert not (path / "examples.json").exists()


def check_checkpoint_every(file: Path, out: Path) -> None:
    path, _, _ = seen(file, out, {"train.steps": 7, "checkpoint.every": 3})
    assert kept(path) == [3, 6, 7]


def check_checkpoint_keep(file: Path, out: Path) -> None:
    path, _, _ = seen(file, out, {"train.steps": 7, "checkpoint.every": 2, "checkpoint.keep": 2})
    assert kept(path) == [6, 7]


def check_checkpoint_milestones(file: Path, out: Path) -> None:
    milestones = {"checkpoint.every": 2, "checkpoint.keep": 2, "checkpoint.milestones": "{tokens: [1]}"}
    path, _, _ = seen(file, out, {"train.steps": 7, **milestones})
    assert kept(path) == [0, 1, 6, 7]


def check_checkpoint_minutes(file: Path, out: Path) -> None:
    path, _, _ = seen(file, out, {"train.steps": 3, "checkpoint.minutes": 1e-9, "checkpoint.keep": 9})
    assert kept(path) == [1, 2, 3]


def check_checkpoint_best(file: Path, out: Path) -> None:
    best = {"checkpoint.every": 1, "checkpoint.keep": 1, "checkpoint.best": "generator_loss", "evaluate.every": 1}
    path, _, _ = seen(file, out, {"train.steps": 5, "train.learning_rate": 1.0, **best})
    losses = {record["generator_loss"]: record["step"] for record in lines(path, "validation")}
    assert kept(path) == sorted({losses[min(losses)], 5})


def check_checkpoint_asynchronous(file: Path, out: Path) -> None:
    with patch.object(saving, "ThreadPoolExecutor", wraps=saving.ThreadPoolExecutor) as pool:
        path, _, _ = seen(file, out, {"train.steps": 2, "checkpoint.asynchronous": True})
    assert kept(path) == [2]
    pool.assert_called_once()


def check_max_minutes(file: Path, out: Path) -> None:
    with pytest.raises(Preempted, match="saved after step 1"):
        seen(file, out, {"run.max_minutes": 1e-9})


def kept(path: Path) -> list[int]:
    return sorted(int(each.name[5:]) for each in (path / "checkpoints").iterdir())


OTHERS: dict[str, Callable[[Path, Path], None]] = {
    "train.tokens": check_tokens,
    "train.flops": check_flops,
    "train.paper_flops": check_paper_flops,
    "train.micro_batch_size": check_micro_batch_size,
    "train.parallel": check_parallel,
    "train.compile": check_compile,
    "train.attention": check_attention,
    "train.activation_checkpointing": check_activation_checkpointing,
    "train.precision": check_precision,
    "train.log_every": check_log_every,
    "train.on_non_finite": check_on_non_finite,
    "train.skip_limit": check_skip_limit,
    "train.most_rollbacks": check_most_rollbacks,
    "train.spike": check_spike,
    "evaluate.every": check_evaluate_every,
    "evaluate.batch_size": check_evaluate_batch_size,
    "evaluate.tokens": check_evaluate_tokens,
    "evaluate.test_tokens": check_evaluate_test_tokens,
    "evaluate.examples": check_evaluate_examples,
    "checkpoint.every": check_checkpoint_every,
    "checkpoint.keep": check_checkpoint_keep,
    "checkpoint.milestones": check_checkpoint_milestones,
    "checkpoint.minutes": check_checkpoint_minutes,
    "checkpoint.best": check_checkpoint_best,
    "checkpoint.asynchronous": check_checkpoint_asynchronous,
    "run.max_minutes": check_max_minutes,
}


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
