"""What each key does that does not show in the weights of a plain loop: one check for each, listed in OTHERS."""

from __future__ import annotations

import json
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
from electra_lab.backbones import _bert_layer
from electra_lab.config.load import load
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training import compilation, recompute
from electra_lab.training import divergence as trouble
from registry.errors import DivergedError
from tests.electra_lab.assembly.plain_loop import BATCH, LENGTH, STEPS, by_hand, equal, overrides
from tests.electra_lab.jobs.pretraining.tiny import lines, passes, run, tensors


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
    with patch.object(_bert_layer, "attend", wraps=_bert_layer.attend) as attending:
        path, _, _ = seen(file, out, {"train.attention": "products"})
    assert attending.call_args_list[-1].args[-1] == "products"
    assert RunDirectory.open(path).provenance().environment.attention == "products"
    assert equal(by_hand(file), tensors(path))


def check_activation_checkpointing(file: Path, out: Path) -> None:
    with patch.object(recompute, "checkpoint", wraps=recompute.checkpoint) as again:
        path, _, _ = seen(file, out, {"train.activation_checkpointing": True})
    assert again.call_count >= 2 * STEPS, "two networks of one layer each"
    assert equal(by_hand(file), tensors(path))


def check_budgets(file: Path, out: Path) -> None:
    """Also train.flops and train.paper_flops: what pays for 3.9 or 2.9 steps buys whole ones."""
    loaded = load(file, overrides({}))
    made = assemble(loaded, open_data(loaded, lambda _: None), torch.device("cpu"))
    paper, flops = made.paper_flops // made.settings.steps, made.settings.flops.per_step
    units = {"tokens": BATCH * LENGTH, "flops": flops, "paper_flops": paper}
    for key, unit in units.items():
        steps = [1, 3] if key == "tokens" else [1, 2]
        path, _, _ = seen(file, out.with_name(key), {"train.steps": None, f"train.{key}": (steps[-1] + 0.9) * unit})
        found = lines(path, "train")
        assert [line["step"] for line in found] == steps
        assert key == "paper_flops" or [line[key] for line in found] == [step * unit for step in steps]
    assert RunDirectory(path).provenance().paper_flops == 2 * paper


def check_skip_limit(file: Path, out: Path) -> None:
    spiky = {"train.steps": 20, "train.log_every": 20, "train.spike": 1.0001, "train.on_non_finite": "skip"}
    with patch.object(trouble, "LEAD", 1):
        path, _, _ = seen(file, out, spiky)
        skipped = lines(path, "train")[-1]["skipped_steps"]
        seen(file, out.with_name("just"), {**spiky, "train.skip_limit": skipped})
        with pytest.raises(DivergedError, match=f"{skipped} in all, more than train.skip_limit"):
            seen(file, out.with_name("more"), {**spiky, "train.skip_limit": skipped - 1})


def check_evaluation(file: Path, out: Path) -> None:
    """All keys of evaluations, which change no weight; and the step of each log line."""
    changes = {"train.log_every": 3, "evaluate.every": 2, "evaluate.at_start": True, "evaluate.batch_size": 3}
    changes |= {"evaluate.tokens": 32, "evaluate.test_tokens": 64, "evaluate.examples": 2}
    path, _, evaluated = seen(file, out, changes)
    assert [line["step"] for line in lines(path, "train")] == [3, 4]
    assert [(line["step"], line["tokens"]) for line in lines(path, "validation")] == [(0, 32), (2, 32), (4, 32)]
    assert [line["tokens"] for line in lines(path, "test")] == [64]
    assert [len(p.examples) for p in evaluated] == [2, 2, 2, 3, 1]
    assert len(json.loads((path / "examples.json").read_text())) == 2
    assert equal(by_hand(file), tensors(path))


OTHERS: dict[str, Callable[[Path, Path], None]] = {
    "train.tokens": check_budgets, "train.micro_batch_size": check_micro_batch_size, "train.compile": check_compile,
    "train.attention": check_attention, "train.activation_checkpointing": check_activation_checkpointing,
    "train.precision": check_precision, "train.skip_limit": check_skip_limit, "evaluate.tokens": check_evaluation,
}  # fmt: skip
