"""What each key does that does not show in the weights of a plain loop: one check for each, listed in OTHERS."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial
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
from electra_lab.jobs import saving
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training import compilation, recompute
from electra_lab.training import divergence as trouble
from registry.errors import DivergedError, Preempted
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


def check_at_start(file: Path, out: Path) -> None:
    """An evaluation before the first step, which changes no weight."""
    path, _, _ = seen(file, out, {"evaluate.at_start": True})
    assert [record["split"] for record in lines(path) if record["step"] == 0] == ["validation"]
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
    for key, unit, steps in (
        ("tokens", BATCH * LENGTH, [1, 3]),
        ("flops", flops, [1, 2]),
        ("paper_flops", paper, [1, 2]),
    ):
        path, _, _ = seen(file, out.with_name(key), {"train.steps": None, f"train.{key}": (steps[-1] + 0.9) * unit})
        found = lines(path, "train")
        assert [line["step"] for line in found] == steps
        assert key == "paper_flops" or [line[key] for line in found] == [step * unit for step in steps]
    assert RunDirectory(path).provenance().paper_flops == 2 * paper


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


def check_evaluate_batch_size(file: Path, out: Path) -> None:
    _, _, evaluated = seen(file, out, {"evaluate.batch_size": 3})
    sizes = [len(p.examples) for p in evaluated]
    assert max(sizes) == 3
    assert sum(size < 3 for size in sizes) <= 2  # the last of validation, and of the test


def check_evaluated_tokens(file: Path, out: Path) -> None:
    """Also evaluate.test_tokens: two rows of 16 tokens; the other split is read as before."""
    for key, split in (("tokens", "validation"), ("test_tokens", "test")):
        path, _, _ = seen(file, out.with_name(key), {f"evaluate.{key}": 32})
        read = {record["split"]: record["tokens"] for record in lines(path) if record["split"] != "train"}
        assert read.pop(split) == 32
        assert min(read.values()) > 32


def check_evaluate_examples(file: Path, out: Path) -> None:
    for examples in (2, 0):
        path, _, _ = seen(file, out.with_name(str(examples)), {"evaluate.examples": examples})
        shown = path / "examples.json"
        assert (len(json.loads(shown.read_text())) if shown.exists() else 0) == examples
    assert not shown.exists()


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


# Keys, with the changes that set them, and the steps that have a log line, an evaluation or a checkpoint.
RHYTHMS: dict[str, tuple[dict[str, Any], str, list[int]]] = {
    "train.log_every": ({"train.log_every": 3}, "train", [3, 6, 7]),
    "evaluate.every": ({"evaluate.every": 3}, "validation", [3, 6, 7]),
    "checkpoint.every": ({"checkpoint.every": 3}, "", [3, 6, 7]),
    "checkpoint.keep": ({"checkpoint.every": 2, "checkpoint.keep": 2}, "", [6, 7]),
    "checkpoint.milestones": (
        {"checkpoint.every": 2, "checkpoint.keep": 2, "checkpoint.milestones": "{tokens: [1]}"}, "", [0, 1, 6, 7]),
    "checkpoint.minutes": ({"train.steps": 3, "checkpoint.minutes": 1e-9, "checkpoint.keep": 9}, "", [1, 2, 3]),
}  # fmt: skip


def check_rhythm(key: str, file: Path, out: Path) -> None:
    changes, split, steps = RHYTHMS[key]
    path, _, _ = seen(file, out, {"train.steps": 7, **changes})
    assert ([line["step"] for line in lines(path, split)] if split else kept(path)) == steps


OTHERS: dict[str, Callable[[Path, Path], None]] = {
    "train.tokens": check_budgets, "evaluate.tokens": check_evaluated_tokens,
    "train.micro_batch_size": check_micro_batch_size, "train.parallel": check_parallel, "train.compile": check_compile,
    "train.attention": check_attention, "train.activation_checkpointing": check_activation_checkpointing,
    "train.precision": check_precision, "train.on_non_finite": check_on_non_finite,
    "train.skip_limit": check_skip_limit, "train.most_rollbacks": check_most_rollbacks, "train.spike": check_spike,
    "evaluate.at_start": check_at_start, "evaluate.batch_size": check_evaluate_batch_size,
    "evaluate.examples": check_evaluate_examples, "checkpoint.best": check_checkpoint_best,
    "checkpoint.asynchronous": check_checkpoint_asynchronous, "run.max_minutes": check_max_minutes,
    **{key: partial(check_rhythm, key) for key in RHYTHMS},
}  # fmt: skip
