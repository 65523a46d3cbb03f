"""One optimizer or one per network: the same numbers without sharing, clipping and epsilon."""

import math
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_lab.training.loop import Run
from electra_lab.training.random import Streams
from electra_lab.training.scheduled import Number, Schedules
from electra_lab.training.step import Learner, by_network, training_step
from registry import optimizers, samplers, schedules
from tests.electra_lab.objectives.tiny import CLS, SEP, Fixed, rows, tables

STEPS, RATE, EPSILON = 4, 0.03, 1e-30
factors = st.floats(0.1, 10.0)


def electra(**weights: float) -> Any:
    gumbel = samplers.get("gumbel").component
    return tables("electra", Fixed(1, 3), gumbel, 6, **weights).train()


def batch() -> Any:
    return rows(CLS, 5, 6, 7, 8, SEP, number=3)


def together(objective: Any, rate: float, change: dict[str, float]) -> None:
    """Train by the lab's step: one optimizer, one loss, the generator's rate as a factor that may change."""
    learner = Learner(objective)
    if change:
        exponential = partial(schedules.get("exponential").component, **change)
        put = partial(setattr, learner, "generator_rate")
        learner.schedules = Schedules([Number(exponential, put)], STEPS)
    optimizer = optimizers.get("adamw").component(list(objective.named_parameters()), RATE, epsilon=EPSILON)
    by_network(optimizer, set(objective.generator.parameters()), rate, clip_each=False)
    Run(learner, optimizer)
    for step in range(STEPS):
        training_step(
            learner, optimizer, batch(), seed=0, step=step, rate=1 - step / STEPS, clip_norm=1e30, micro_batch_size=3,
            precision="fp32",
        )  # fmt: skip


def apart(objective: Any, rate: float, change: dict[str, float]) -> None:
    """Train by two torch optimizers, each network only on its own unweighted loss."""
    made = {}
    for name in ("generator", "discriminator"):
        parameters = getattr(objective, name).parameters()
        made[name] = torch.optim.AdamW(parameters, eps=EPSILON, weight_decay=0.01)
    for step in range(STEPS):
        terms = objective(batch(), Streams.of(0, step, batch().example_ids)).terms
        left = math.e ** (-change["rate"] * step / (STEPS - 1)) if change else 0.0
        factor = change["end"] + (change["start"] - change["end"]) * left if change else rate
        for name, optimizer in made.items():
            optimizer.zero_grad()
            (terms[name].sum / terms[name].count).backward()
            own = factor if name == "generator" else 1.0
            optimizer.param_groups[0]["lr"] = float(np.float32(RATE * (1 - step / STEPS) * own))  # as the lab rounds it
        for optimizer in made.values():
            optimizer.step()


@settings(max_examples=20, deadline=None)
@given(generator=st.floats(0.01, 100.0), discriminator=st.floats(0.01, 100.0), rate=factors, end=factors, fast=factors)
def test_two_optimizers_are_one_without_tying_clipping_and_epsilon(generator, discriminator, rate, end, fast) -> None:
    """AdamW treats every number separately and cancels the weight of its loss (Dong et al. 2023)."""
    for change in ({}, {"start": rate, "end": end, "rate": fast}):
        joint = electra(generator_weight=generator, discriminator_weight=discriminator)
        decoupled = deepcopy(joint)
        together(joint, 1.0 if change else rate, change)
        apart(decoupled, rate, change)
        for parameter, other in zip(joint.parameters(), decoupled.parameters(), strict=True):
            torch.testing.assert_close(parameter, other, rtol=1e-9, atol=1e-9)
