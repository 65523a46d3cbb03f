"""The rehearsal of a step and an evaluation and the trial of an optimizer name the part that breaks a contract."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from electra_lab.checks import guards
from electra_lab.checks.guards import on_trial, rehearse, try_optimizer
from electra_lab.metrics import PretrainingMetrics
from electra_lab.testing import CLS, PAD, ObjectiveContract, vocabulary
from electra_lab.training.step import Learner
from registry import Batch, Losses, Term, backbones, objectives, optimizers
from registry.errors import BadResult

COUNTING = partial(PretrainingMetrics, vocabulary(24))
TOKENS = torch.tensor([[CLS, 7, 8, 9, PAD], [CLS, 5, 6, PAD, PAD]])
BATCH = Batch(TOKENS, TOKENS > PAD, TOKENS * 0, torch.arange(2))
TERM = Term(torch.tensor(1.0), torch.tensor(1), 1.0)


def build(name: str = "electra", **options: Any) -> Any:
    suite = ObjectiveContract()
    suite.name, suite.options = name, options
    return suite.build()


def rehearsed(objective: Any, accumulate: Any = COUNTING, batch: Batch = BATCH) -> None:
    rehearse(Learner(objective), objectives.get("electra"), batch, 7, "fp32", accumulate)


def unchanged(module: nn.Module, before: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def state(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_a_rehearsal_runs_training_and_evaluation_and_leaves_nothing_behind() -> None:
    objective = build()
    modes: list[bool] = []
    objective.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    before, tokens = state(objective), torch.randint(5, 24, (2, 16))
    rehearsed(objective, batch=Batch(tokens, tokens > 0, torch.zeros_like(tokens), torch.arange(2)))
    assert modes == [True, False]
    assert objective.training
    assert all(parameter.grad is None for parameter in objective.parameters())
    assert unchanged(objective, before)


def test_a_trial_restores_weights_that_change_with_the_step() -> None:
    objective = build("two_stage", generator_steps=3)
    before = state(objective)
    with on_trial(objective):
        Learner(objective).at_step(0, 3)
        assert not unchanged(objective, before)
    assert unchanged(objective, before)


def performer() -> Any:
    return backbones.get("performer").component(16, 1, 2, 32, features=8, redraw_every=2)


def test_what_is_frozen_does_not_change_with_the_step() -> None:
    objective: Any = nn.Module()
    objective.frozen, objective.learning = performer().eval(), performer()
    before = [network.features.clone() for network in (objective.frozen, objective.learning)]
    Learner(objective).at_step(7, 4)
    assert torch.equal(objective.frozen.features, before[0])
    assert not torch.equal(objective.learning.features, before[1])


def test_after_a_rehearsal_features_are_those_of_the_seed() -> None:
    objective, expected = build(), performer()
    objective.extra = performer()
    rehearsed(objective)
    Learner(objective.train()).at_step(7, 0)
    expected.at_step(7, 0)
    assert torch.equal(objective.extra.features, expected.features)


def test_a_rehearsal_restores_buffers_that_change_by_themselves() -> None:
    """For example the averages of batch normalization; and a refusal names the objective, also in eval mode."""
    objective = build()
    objective.extra = nn.BatchNorm1d(16)
    late: list[str] = ["late"]

    class Normalizing(type(objective)):
        def forward(self, batch: Batch, streams: Any) -> Losses:
            self.extra(torch.randn(4, 16))
            found = super().forward(batch, streams)
            more = {} if self.training else dict.fromkeys(late, TERM)
            return Losses(found.terms | more, found.predictions, found.detection)

    objective.__class__ = Normalizing
    with pytest.raises(BadResult, match=r"objective 'electra' returned the terms \['discriminator', 'generator', 'la"):
        rehearsed(objective)
    late.clear()
    before = state(objective.extra)
    rehearsed(objective)
    assert unchanged(objective.extra, before)


def test_networks_are_given_at_most_the_documents_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, documents = build(), torch.zeros_like(TOKENS)
    batch = replace(BATCH, attention_document_ids=documents, document_counts=torch.tensor([2, 2]))
    rehearsed(objective, batch=batch)

    class Dividing(type(objective)):
        def forward(self, batch: Batch, streams: Any) -> Losses:
            more = batch.attention_document_ids + torch.tensor([0, 0, 1, 1, 1])
            return super().forward(replace(batch, attention_document_ids=more), streams)

    objective.__class__ = Dividing
    rehearsed(objective, batch=batch)  # nothing counts the documents of short rows
    monkeypatch.setattr(guards, "FLASH_BEYOND", TOKENS.shape[1] - 1)
    with pytest.raises(BadResult, match=r"electra\.py:\d+: objective 'electra' .* 6 documents .* has 4"):
        rehearsed(objective, batch=batch)
    rehearsed(objective, batch=replace(batch, document_counts=None))


def of_adamw(change: Callable[[Any], Any]) -> Any:
    entry = optimizers.get("adamw")
    made = replace(entry, component=lambda *given, **options: change(entry.component(*given, **options)))
    return try_optimizer(made, 1e-3, {"weight_decay": 0.5})


def afterwards(change: Callable[[Any], object], in_step: bool = False) -> Callable[[Any], Any]:
    """Change an optimizer when it is built, or after each of its steps."""

    def changed(optimizer: Any) -> Any:
        step = optimizer.step
        if in_step:
            optimizer.step = lambda: (step(), change(optimizer))
        else:
            change(optimizer)
        return optimizer

    return changed


def double(optimizer: Any) -> None:
    optimizer.param_groups[1]["params"] += optimizer.param_groups[0]["params"]


def count(optimizer: Any) -> None:
    """Keep the step count where schedule-free optimizers keep it."""
    optimizer.param_groups[0]["k"] = optimizer.param_groups[0].get("k", 0) + 1


def grow(optimizer: Any) -> None:
    """Let the weights depend on a step count that is not part of the state."""
    optimizer.calls = getattr(optimizer, "calls", 0) + 1
    for group in optimizer.param_groups:
        torch._foreach_add_([parameter.data for parameter in group["params"]], optimizer.calls)


def with_state(**state: Any) -> Callable[[Any], Any]:
    return afterwards(lambda optimizer: [kept.update(state) for kept in optimizer.state.values()], in_step=True)


def beginning_elsewhere(optimizer: Any) -> Any:
    """Keep a copy of the initial weights, as averaging optimizers do, in an unfused step."""
    optimizer._step_supports_amp_scaling = False
    for group in optimizer.param_groups:
        group["fused"] = False
    step = optimizer.step

    def stepped() -> None:
        first = {p: p.detach().clone() for group in optimizer.param_groups for p in group["params"]}
        step()
        for parameter, state in optimizer.state.items():
            state.setdefault("begun", first[parameter])

    optimizer.step = stepped
    optimizer.state_bytes = lambda parameter: 12 * parameter.numel() + 4
    return optimizer


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda optimizer: object(), "must be a class derived from torch.optim.Optimizer."),
        (afterwards(lambda optimizer: optimizer.param_groups.pop()),
         "must have every parameter that it is given in exactly one group."),
        (afterwards(double), "must have every parameter that it is given in exactly one group."),
        (with_state(count=3), "keeps the state 'count', which is not a tensor; a checkpoint could not hold it."),
        (with_state(**{"a.b": torch.zeros(1)}), "keeps the state 'a.b', which is not a tensor"),
        (with_state(more=torch.zeros(2)), "must have a method state_bytes(parameter), which returns 60 for shape [2"),
        (afterwards(lambda optimizer: setattr(optimizer, "state_bytes", lambda parameter: 8 * parameter.numel())),
         "must have a method state_bytes(parameter), which returns 52 for shape [2, 3]."),
        (afterwards(lambda optimizer: setattr(optimizer, "state_bytes", None)),
         "must have a method state_bytes(parameter), which returns 52 for shape [2, 3]."),
        (afterwards(count, in_step=True),
         "changes its param_groups in a step; a checkpoint holds only tensors in `state`."),
        (afterwards(grow, in_step=True), "continues differently after a skipped step"),
        (beginning_elsewhere, "continues differently after a skipped step; every tensor of its state must begin"),
    ],
)  # fmt: skip
def test_an_optimizer_that_breaks_its_contract(change: Callable[[Any], Any], reason: str) -> None:
    with pytest.raises(BadResult, match=rf"optimizers/adamw\.py:\d+: optimizer 'adamw' {re.escape(reason)}"):
        of_adamw(change)


def test_a_good_optimizer_is_tried_with_its_options_and_rate() -> None:
    tried = of_adamw(lambda optimizer: optimizer)
    assert [(group["lr"], group["weight_decay"]) for group in tried.param_groups] == [(1e-3, 0.5), (1e-3, 0.0)]
    assert all(optimizer.state for optimizer in (tried, try_optimizer(optimizers.get("adafactor"), 1e-3, {})))
    with pytest.raises(ValueError, match="Invalid learning rate"):
        try_optimizer(optimizers.get("adamw"), -1.0, {})


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"auk": 1.0}, "has a metric 'auk' that it does not declare."),
        ({"discriminator_auc": "high"}, "has a metric 'discriminator_auc' that is 'high', must be a number."),
    ],
)
def test_metrics_are_tried_too(values: dict[str, Any], reason: str) -> None:
    class Broken(PretrainingMetrics):
        def values(self) -> dict[str, float]:
            assert self._sums, "it has seen the batch"
            return values

    with pytest.raises(BadResult, match=rf"electra\.py:\d+: objective 'electra' {re.escape(reason)}"):
        rehearsed(build(), partial(Broken, vocabulary(24)))


@pytest.mark.parametrize("method", ["update", "values", "examples"])
def test_an_accumulator_that_fails_does_so_before_training(method: str) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError(method)

    broken = partial(type("Broken", (PretrainingMetrics,), {method: fail}), vocabulary(24))
    with pytest.raises(ZeroDivisionError, match=method):
        rehearsed(build(), broken)
