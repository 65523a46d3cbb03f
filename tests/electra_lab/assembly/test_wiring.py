"""Every key has its effect: on weights, compared with torch's own optimizers, and on records and files."""

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

from electra_lab.assembly.data import open_data
from electra_lab.assembly.experiment import assemble
from electra_lab.backbones import bert
from electra_lab.config.load import load
from electra_lab.config.schema import Evaluate, Process, Train
from electra_lab.config.sections import Checkpoint
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training import device, execution
from registry.errors import DivergedError
from tests.electra_lab.assembly import plain_loop
from tests.electra_lab.assembly.plain_loop import BATCH, LENGTH, STEPS, adafactor, adamw, at, by_hand, equal, overrides
from tests.electra_lab.jobs.pretraining.tiny import for_a_module, lines, passes, run, tensors

# Checked with other keys in OTHERS, by the tests of jobs (checkpoints, divergence), or with several processes.
SHARED = {
    "train.epochs", "train.batch_warmup", "train.flops", "train.paper_flops", "train.log_every", "train.parallel",
    "train.on_non_finite", "train.spike", "run.max_minutes", "evaluate.test_tokens",
    "evaluate.at_start", "evaluate.every", "evaluate.batch_size", "evaluate.examples", "checkpoint.asynchronous",
    "checkpoint.every", "checkpoint.keep", "checkpoint.minutes", "checkpoint.milestones", "checkpoint.best",
}  # fmt: skip
WARM = {f"schedules.learning_rate.{key}": None for key in ("type", "start", "end")}  # back to the default schedule
ADAFACTOR = {"optimizer": "{type: adafactor}", "train.learning_rate": 0.05}


# Keys, with the changes that set them, and the options of an equal plain loop. The effect of further options of
# optimizers and schedules is covered by their own tests; here a few show that options arrive.
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
    file = plain_loop.file_in(tmp_path_factory.mktemp("wiring"))
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


# Keys that do not affect the weights of a plain loop


def seen(file: Path, out: Path, changes: dict[str, Any]) -> tuple[Path, list[Any], list[Any]]:
    """Return the run, and its objective's passes in training and in evaluation."""
    path = run(file, out, *overrides(changes))
    found = passes()
    return path, [p for p in found if p.training], [p for p in found if p.evaluating]


def check_micro_batch_size(file: Path, out: Path) -> None:
    path, training, _ = seen(file, out, {"train.micro_batch_size": 2})
    assert [len(p.examples) for p in training] == [2] * (STEPS * BATCH // 2)
    assert [p.examples for p in training[:2]] == [[0, 1], [2, 3]]
    assert equal(by_hand(file), tensors(path))


def check_compile(file: Path, out: Path) -> None:
    """With a backend that only records graphs; training/test_compilation.py checks the numbers."""
    with patch.object(device, "BACKEND", "eager"), redirect_stderr(StringIO()) as printed:
        torch._dynamo.reset()
        counters.clear()
        path, _, _ = seen(file, out, {"train.compile": "layers"})
    assert counters["stats"]["unique_graphs"]
    assert RunDirectory.open(path).provenance().environment.compile == "layers"
    assert re.search(r"^compiled in \d+ s$", printed.getvalue(), re.MULTILINE)
    assert equal(by_hand(file), tensors(path)), "the warm-up must leave no trace"
    counters.clear()
    seen(file, out.with_name("off"), {"train.compile": "off"})
    assert not counters["stats"]


def check_precision(file: Path, out: Path) -> None:
    path, training, evaluated = seen(file, out, {"train.precision": "bf16", "train.attention": "fused"})
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
    with patch.object(device, "checkpoint", wraps=device.checkpoint) as again:
        path, _, _ = seen(file, out, {"train.activation_checkpointing": True})
    assert again.call_count >= 2 * STEPS, "two networks of one layer each"
    assert equal(by_hand(file), tensors(path))


def check_budgets(file: Path, out: Path) -> None:
    """Also train.flops and train.paper_flops: a budget of 3.9 or 2.9 steps buys 3 or 2."""
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
    with patch.object(execution, "LEAD", 1):
        path, _, _ = seen(file, out, spiky)
        skipped = lines(path, "train")[-1]["skipped_steps"]
        seen(file, out.with_name("just"), {**spiky, "train.skip_limit": skipped})
        with pytest.raises(DivergedError, match=f"{skipped} in all, more than train.skip_limit"):
            seen(file, out.with_name("more"), {**spiky, "train.skip_limit": skipped - 1})


def check_evaluation(file: Path, out: Path) -> None:
    """All keys of evaluations, which do not change the weights; and the step of each log line."""
    changes = {"train.log_every": 3, "evaluate.every": 2, "evaluate.at_start": True, "evaluate.batch_size": 3}
    changes |= {"evaluate.tokens": 32, "evaluate.test_tokens": 64, "evaluate.examples": 2}
    path, _, evaluated = seen(file, out, changes)
    assert [line["step"] for line in lines(path, "train")] == [3, 4]
    assert [(line["step"], line["tokens"]) for line in lines(path, "validation")] == [(0, 32), (2, 32), (4, 32)]
    assert [line["tokens"] for line in lines(path, "test")] == [64]
    assert [len(p.examples) for p in evaluated] == [2, 2, 2, 3, 1]
    assert len(json.loads((path / "examples.json").read_text())) == 2
    assert equal(by_hand(file), tensors(path))


def check_graph(file: Path, out: Path) -> None:
    """On a CPU a run says that nothing is recorded, and goes on; training/test_graph.py has the rest."""
    with redirect_stderr(StringIO()) as printed:
        path, _, _ = seen(file, out, {"train.graph": "on"})
    assert "not recorded as CUDA graphs: there is no CUDA device here" in printed.getvalue()
    assert equal(by_hand(file), tensors(path))


OTHERS: dict[str, Callable[[Path, Path], None]] = {
    "train.tokens": check_budgets, "train.micro_batch_size": check_micro_batch_size, "train.compile": check_compile,
    "train.attention": check_attention, "train.activation_checkpointing": check_activation_checkpointing,
    "train.graph": check_graph, "train.precision": check_precision,
    "train.skip_limit": check_skip_limit, "evaluate.tokens": check_evaluation,
}  # fmt: skip


@pytest.mark.parametrize("key", OTHERS)
def test_a_key_does_what_it_says(plain: Any, tmp_path: Path, key: str) -> None:
    OTHERS[key](plain[0], tmp_path / "run")


def test_no_key_is_left_out() -> None:
    expected = set[str]()
    for section, model in (("train", Train), ("evaluate", Evaluate), ("checkpoint", Checkpoint), ("run", Process)):
        expected |= {f"{section}.{key}" for key in model.model_fields}
    listed = WEIGHTS.keys() | OTHERS.keys() | SHARED
    assert {key for key in listed if not key.startswith(("optimizer.", "schedules."))} == expected
