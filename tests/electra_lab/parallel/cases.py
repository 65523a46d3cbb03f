"""Train and evaluate tiny experiments, as one process or as one of several: `main`."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from electra_lab.assembly.data import open_data
from electra_lab.assembly.experiment import assemble
from electra_lab.config.load import load
from electra_lab.jobs.endings import exit_code
from electra_lab.parallel.session import session
from electra_lab.planning.forecast import Workload
from electra_lab.storage.checkpoint import load_newest, save, tensors_of
from electra_lab.testing.optimizers import STATE
from electra_lab.training.evaluation import evaluate
from electra_lab.training.execution import LossScale
from electra_lab.training.step import Learner, training_step
from registry.contracts.objective import World
from tests.electra_lab.training.tiny import CPU
from tests.helpers import ROOT, write_experiment

STEPS, ROWS = 3, 8
PLUG_IN = ROOT / "experiments" / "plugins" / "three_classes.py"  # an objective with a head and a metric
_DATA = "{{sequence_length: 16, held_out: 0.3, store: {}/store}}"
# So large that the rounding of tiny gradients, which depends on the processor, changes no weight.
_EPSILON = "epsilon: 1.0e-3"
_BASE = {
    "optimizer": f"{{type: adamw, {_EPSILON}}}",
    "embedding": "{dim: 8, max_length: 16, dropout: 0.0}",
    "discriminator": "{type: bert, dim: 16, depth: 2, heads: 2, dropout: 0.0}",
    "train": "{steps: 6, batch_size: 8, precision: fp32, learning_rate: 0.01}",
}
_TRANSFORMER = "{type: transformer, dim: 16, depth: 2, heads: 2, dropout: 0.0, rmsnorm: true, glu: true}"
_PERFORMER = "{type: performer, dim: 16, depth: 2, heads: 2, dropout: 0.0, features: 8, redraw_every: 2}"
_REFORMER = "{type: reformer, dim: 16, depth: 2, heads: 2, dropout: 0.0, bucket_size: 4, hashes: 1}"
_RANDOM = "{type: replace_prob, replace_prob: 0.6, random_prob: 0.4}"
_APART = _BASE["train"].replace("{", "{generator_rate: 0.5, clip: per_network, ")
_UNTIED = "{dim: 8, max_length: 16, dropout: 0.0, tie: none}"
# Rows so long that some are read twice.
SAS = {
    "objective": "{type: sas, remask: every_visit}", "generator": "null", "data": _DATA.replace("16", "32"),
    "embedding": _BASE["embedding"].replace("16", "32"),
}  # fmt: skip
_LAYERS = {"embedding": _UNTIED.replace("none", "{layers: 1}"), "generator": "{scale: 1.0}"}

# name: sections of the experiment, rows of a micro-batch
EXPERIMENTS: dict[str, tuple[dict[str, str], int]] = {
    "whole": ({}, 8),
    "micro": ({}, 2),
    "uneven": ({}, 3),  # micro-batches of 3 and 1 rows on each of two ranks
    "tied": ({"embedding": _UNTIED.replace("none", "all"), "generator": "{scale: 1.0}", "train": _APART}, 2),
    "disentangled": ({"embedding": _UNTIED.replace("none", "gradient_disentangled")}, 2),
    # In the first stage one network has no gradient.
    "two_stage": ({"embedding": _UNTIED, "objective": "{type: two_stage, generator_steps: 1}", "train": _APART}, 2),
    "adversarial": ({"objective": "{type: adversarial}", "sampler": "{type: temperature}"}, 4),
    "electric": ({"objective": "{type: electric}", "generator": "{type: two_towers, scale: 0.5, dropout: 0.0}"}, 2),
    "coco_lm": ({"objective": "{type: coco_lm, group: 2}"}, 2),
    "amos": ({"objective": "{type: amos}", "sampler": "null"}, 2),
    "mc_bert": ({"objective": "{type: mc_bert, k: 4}"}, 2),
    "teams": ({"objective": "{type: teams}"}, 2),
    "shared_layers": ({"objective": "{type: teams}", **_LAYERS}, 2),
    "recomputing": ({"train": _BASE["train"].replace("{", "{activation_checkpointing: true, ")}, 2),
    # The last rank has memory for two rows at a time.
    "scarce": ({"train": _BASE["train"].replace("{", "{micro_batch_size: auto, ")}, 2),
    "plug_in": ({"imports": f"[{PLUG_IN}]", "objective": "{type: three_classes}", "masking": _RANDOM}, 2),
    "mlm": ({"objective": "{type: mlm}", "generator": "null", "sampler": "null"}, 4),
    "sas": (SAS, 2),
    "transformer": ({"discriminator": _TRANSFORMER}, 2),
    "performer": ({"discriminator": _PERFORMER}, 4),
    "reformer": ({"discriminator": _REFORMER}, 4),
    "no_correction": ({"optimizer": f"{{type: adamw_no_bias_correction, {_EPSILON}}}"}, 4),
    "poisoned": ({}, 4),  # in step 1 the loss of the last rank is not finite
    "overflowing": ({}, 4),  # in step 1 the scaled gradients of the last rank are not finite
    "adafactor": ({"optimizer": "{type: adafactor}"}, 4),
    "muon": ({"optimizer": "{type: muon}"}, 4),
    "reversible": ({"discriminator": _REFORMER.replace("hashes", "reversible: true, hashes")}, 4),
}
DDP_ALONE = ("adafactor", "muon", "reversible", "shared_layers")
CASES = [("ddp", name) for name in EXPERIMENTS] + [("fsdp", name) for name in EXPERIMENTS if name not in DDP_ALONE]
if "ELECTRA_LAB_PARALLEL" not in os.environ:  # the rest: make test-parallel
    QUICK = {"ddp": "uneven scarce two_stage sas coco_lm overflowing muon", "fsdp": "tied poisoned recomputing plug_in"}
    CASES = [(parallel, name) for parallel, names in QUICK.items() for name in names.split()]


def trained(folder: Path, parallel: str, name: str, world: World) -> dict[str, Any]:
    """Train for some steps, evaluate, save a checkpoint in folder / `checkpoint`; returns the results of this rank."""
    sections, micro = EXPERIMENTS[name]
    home = folder / "here" / str(world.rank)
    sections = {**_BASE, "data": _DATA, **sections}
    sections["data"] = sections["data"].format(home)
    sections["train"] = sections["train"].replace("steps", f"parallel: {parallel}, steps")
    loaded = load(write_experiment(home, f"{parallel}-{name}.yaml", **sections), [])
    with _memory_for(2 if name == "scarce" and world.rank == world.size - 1 else ROWS):
        made = assemble(loaded, open_data(loaded, lambda _: None), CPU, world=world)
    learner, optimizer = made.run.learner, made.run.optimizer
    if name == "poisoned" and world.rank == world.size - 1:
        _poison(learner.objective, lambda: made.run.step == 1)
    scale = LossScale(CPU, 2.0**10) if name == "overflowing" else None
    if scale and world.rank == world.size - 1:
        _overflow(learner.objective, lambda: made.run.step == 1)
    judge = partial(
        evaluate, learner, made.test, made.accumulate, seed=0, batch_size=2, precision="fp32", device=CPU, examples=3
    )
    before, steps = judge(), []
    read: dict[str, list[list[Any]]] = {"generator": [], "discriminator": []}  # rows by step
    for role, rows in read.items():
        if network := getattr(learner.objective, role, None):
            network._read = _noting(network._read, rows)
    learner.objective.train()
    for number in range(STEPS):
        made.run.step = number
        for rows in read.values():
            rows.append([])
        batch = made.train.training_batch(0, number, ROWS, CPU, part=world.part(ROWS))
        result = training_step(
            learner, optimizer, batch, seed=0, step=number, rate=1.0, clip_norm=1.0, micro_batch_size=micro,
            precision="fp32", scale=scale,
        )  # fmt: skip
        numbers = {key: float(value) for key, value in {**result.sums, "norm": result.gradient_norm}.items()}
        numbers["scale"] = float(scale.scale) if scale else 1.0
        counts = {key: int(value) for key, value in result.counts.items()}
        steps.append({"numbers": numbers, "counts": counts, "finite": bool(result.accepted)})
    inputs, drawn = json.loads(json.dumps(read)), float(torch.rand(()))
    found, checkpoints = judge(), folder / parallel / name / str(world.size)
    _save(checkpoints, learner, optimizer)
    world.wait()
    with torch.no_grad():
        for parameter in learner.objective.parameters():
            parameter.zero_()
    optimizer.state.clear()
    load_newest(checkpoints, learner.objective, optimizer, print)
    _save(checkpoints / "again", learner, optimizer)
    divided = [name for name, p in learner.objective.named_parameters() if hasattr(p, "full_tensor")]
    return {
        "rows": made.settings.micro_batch_size,
        "steps": steps, "inputs": inputs, "drawn": drawn, "divided": divided,
        "before": asdict(before), "evaluation": asdict(found),
        "parameters": [name for name, _ in learner.objective.named_parameters()],
        "held": sum(getattr(p, "_local_tensor", p).numel() for p in learner.objective.parameters()),
        "all": sum(p.numel() for p in learner.objective.parameters()),
    }  # fmt: skip


def _save(folder: Path, learner: Learner, optimizer: Any) -> None:
    tensors = tensors_of(learner.objective, optimizer, keep=learner.world.first)
    if learner.world.first:
        save(folder, STEPS, tensors, STATE, 1)


@contextmanager
def _memory_for(most: int) -> Iterator[None]:
    with patch.object(Workload, "working_bytes", lambda work: 0 if work.settings.micro_batch_size <= most else 1 << 60):
        yield


def _noting(read: Any, rows: list[list[Any]]) -> Any:
    def noting(tokens: torch.Tensor, *others: Any, **options: Any) -> Any:
        rows[-1] += tokens.tolist()
        return read(tokens, *others, **options)

    return noting


def _poison(objective: nn.Module, now: Any) -> None:
    head = objective.discriminator.heads["replaced"]
    head.register_forward_hook(lambda module, _, logits: logits * float("nan") if module.training and now() else None)


def _overflow(objective: nn.Module, now: Any) -> None:
    def spoil(module: nn.Module, _: Any, logits: torch.Tensor) -> None:
        if module.training and now():
            logits.register_hook(lambda gradient: gradient * float("inf"))

    objective.discriminator.heads["replaced"].register_forward_hook(spoil)


def main(folder: str) -> None:
    place = Path(folder)
    with session("cpu", exit_code) as world:
        for parallel, name in CASES:
            found = trained(place, parallel, name, world)
            (place / f"{parallel}-{name}-{world.rank}.json").write_text(json.dumps(found))
