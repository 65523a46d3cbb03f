"""A plain training loop in torch alone, with torch's own optimizers, on an experiment's networks and rows."""

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from electra_lab.assembly.data import open_data
from electra_lab.assembly.experiment import assemble
from electra_lab.config.load import load
from electra_lab.training.random import Streams
from tests.electra_lab.jobs.pretraining.tiny import spying

STEPS, BATCH, LENGTH, RATE = 4, 4, 16, 0.02
BASE: dict[str, Any] = {
    "train.steps": STEPS, "train.batch_size": BATCH, "train.learning_rate": RATE, "train.clip_norm": 1e9,
    "train.precision": "fp32", "optimizer.weight_decay": 0.0, "optimizer.epsilon": 0.01,
    "schedules.learning_rate.type": "linear", "schedules.learning_rate.start": 1.0, "schedules.learning_rate.end": 1.0,
    "evaluate.examples": 0,
}  # fmt: skip


def overrides(changes: dict[str, Any]) -> list[str]:
    """Return BASE with changes, as --set takes them; None leaves a key out."""
    wanted = BASE | changes
    if "optimizer" in changes:  # first, as a changed type drops the options that were set before
        others = {key: value for key, value in wanted.items() if key in changes or not key.startswith("optimizer.")}
        wanted = {"optimizer": changes["optimizer"], **others}
    return [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in wanted.items()
            if value is not None]  # fmt: skip


def file_in(folder: Path) -> Path:
    discriminator = "{type: bert, dim: 16, depth: 1, heads: 2, dropout: 0.0}"
    sizes = {"embedding": "{dim: 8, max_length: 16, dropout: 0.0}", "discriminator": discriminator}
    return spying(folder, train="{}", schedules="{}", evaluate="{}", checkpoint="{}", **sizes)


Rates = Callable[[int, int], float]


def at(number: float) -> Rates:
    return lambda *_: number


def adamw(**options: Any) -> Callable[[Any], Any]:
    decay = options.pop("weight_decay", 0.0)
    settings = {"lr": RATE, "eps": 0.01, **options}
    return lambda parameters: torch.optim.AdamW(grouped(parameters, decay), **settings)


def adafactor(weight_decay: float = 0.0, **options: Any) -> Callable[[Any], Any]:
    settings = {"lr": 0.05, "eps": (None, 1e-3), **options}
    return lambda parameters: torch.optim.Adafactor(grouped(parameters, weight_decay), **settings)


def grouped(parameters: list[torch.Tensor], decay: float) -> list[dict[str, Any]]:
    return [{"params": [p for p in parameters if (p.ndim > 1) == wide], "weight_decay": decay * wide}
            for wide in (True, False)]  # fmt: skip


@cache  # many keys do not change the weights
def by_hand(
    file: Path, *, optimizer: Callable[[Any], Any] | None = None, rates: Rates = lambda *_: 1.0, steps: int = STEPS,
    batch: int = BATCH, clip: float = 1e9, bf16: bool = False, networks: tuple[Rates, ...] = (),
) -> dict[str, torch.Tensor]:  # fmt: skip
    """Train the experiment's own networks on its own rows in a plain torch loop; returns the weights.

    networks  factors of the rates of generator and discriminator, each of which has its own optimizer and clipping, at
              each step
    """
    loaded = load(file, overrides({}))
    made = assemble(loaded, open_data(loaded, lambda _: None), torch.device("cpu"))
    objective: Any = made.run.learner.objective.train()
    parameters = list(objective.parameters())
    of_generator = set(objective.generator.parameters())
    parts = [[p for p in parameters if p in of_generator], [p for p in parameters if p not in of_generator]]
    parts = parts if networks else [parameters]
    trained = [(optimizer or adamw())(part) for part in parts]
    first, factors = [one.param_groups[0]["lr"] for one in trained], networks or (at(1.0),)
    for step in range(steps):
        rows = made.train.training_batch(0, step, batch, torch.device("cpu"))
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            terms = objective(rows, Streams.of(0, step, rows.example_ids)).terms
        loss = terms["generator"].sum / terms["generator"].count
        loss = loss + 50.0 * terms["discriminator"].sum / terms["discriminator"].count
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        for part, one, rate, factor in zip(parts, trained, first, factors, strict=True):
            norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in part))
            for parameter in part:
                parameter.grad *= min(1.0, clip / norm)
            for group in one.param_groups:
                group["lr"] = rate * rates(step, steps) * factor(step, steps)
            one.step()
    return {f"model.{name}": p.detach() for name, p in objective.named_parameters()}


def equal(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return all(torch.allclose(one[name], two[name], rtol=1e-3, atol=2e-5) for name in one)
