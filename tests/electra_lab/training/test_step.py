"""The optimizer step: groups, schedule, micro-batches, steps that are not finite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from electra_lab.assemble import Experiment, assemble, open_data
from electra_lab.config.load import load
from electra_lab.training.optimizer import learning_rate_at, make_optimizer
from electra_lab.training.step import training_step
from registry import Batch, Losses, Term
from tests.helpers import write_experiment

DISCRIMINATORS = {
    "bert": "{type: bert, dim: 16, depth: 1, heads: 2, dropout: 0.0}",
    "transformer": "{type: transformer, dim: 16, depth: 1, heads: 2, dropout: 0.0}",
    "reformer": "{type: reformer, dim: 16, depth: 1, heads: 2, bucket_size: 4, hashes: 1, dropout: 0.0}",
}


def experiment(folder: Path, **sections: str) -> Experiment:
    sections = {
        "embedding": "{dim: 8, max_length: 16, dropout: 0.0}",
        "discriminator": DISCRIMINATORS["bert"],
        "train": "{steps: 5, batch_size: 8, warmup_steps: 0, precision: fp32}",
        **sections,
    }
    loaded = load(write_experiment(folder, **sections))
    return assemble(loaded, open_data(loaded, lambda _: None), torch.device("cpu"))


def step(made: Experiment, *, number: int = 0, micro: int | None = None, rate: float = 1e-3) -> Any:
    made.run.objective.train()
    return training_step(
        made.run.objective,
        made.run.optimizer,
        made.train.training_batch(0, number, 8, made.device),
        seed=0,
        step=number,
        learning_rate=rate,
        clip_norm=1.0,
        micro_batch_size=micro or 8,
        precision="fp32",
    )


@pytest.mark.parametrize("backbone", DISCRIMINATORS)
@pytest.mark.parametrize("tie", ["none", "tokens", "embeddings"])
def test_every_trainable_parameter_is_in_exactly_one_group_and_moves(tmp_path: Path, backbone: str, tie: str) -> None:
    made = experiment(
        tmp_path,
        discriminator=DISCRIMINATORS[backbone],
        embedding=f"{{dim: 8, max_length: 16, tie: {tie}, dropout: 0.0}}",
    )
    groups = made.run.optimizer.param_groups
    listed = [id(p) for group in groups for p in group["params"]]
    parameters = dict(made.run.objective.named_parameters())
    assert sorted(listed) == sorted(id(p) for p in parameters.values())
    assert {p.ndim >= 2 for p in groups[0]["params"]} == {True}
    assert {p.ndim < 2 for p in groups[1]["params"]} == {True}
    assert [g["weight_decay"] for g in groups] == [0.01, 0.0]

    before = {name: p.detach().clone() for name, p in parameters.items()}
    for number in range(3):
        step(made, number=number)
    still = [name for name, p in parameters.items() if torch.equal(before[name], p)]
    assert not still


def test_frozen_parameters_are_left_out() -> None:
    module = nn.Linear(3, 3)
    module.bias.requires_grad_(False)
    groups = make_optimizer(module, 1e-3, (0.9, 0.999), 1e-6, 0.01).param_groups
    assert [len(g["params"]) for g in groups] == [1]


class Bowl(nn.Module):
    """The squared distances of a matrix and a vector from 3, as two terms, the second of twice the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.vector = nn.Parameter(torch.tensor([[1.0, 8.0]])), nn.Parameter(torch.tensor([-2.0, 3.5]))

    def forward(self, batch: Batch, rng: Any) -> Losses:
        count = batch.mask.sum()
        parts = {"matrix": (self.matrix, 1.0), "vector": (self.vector, 2.0)}
        return Losses(
            {name: Term((p - 3).square().sum() * count, count, weight) for name, (p, weight) in parts.items()}
        )


def test_two_steps_are_those_of_adamw_worked_out_by_hand() -> None:
    """Clipping by the global norm, the moments with their corrections, decay of the matrix alone."""
    tokens = torch.full((2, 3), 7)
    batch = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.zeros_like(tokens), torch.arange(2))
    bowl = Bowl()
    optimizer = make_optimizer(bowl, 1.0, (0.9, 0.99), 1e-6, 0.2)
    weights, decay = torch.tensor([1.0, 8.0, -2.0, 3.5]).double(), torch.tensor([0.2, 0.2, 0.0, 0.0])
    mean, square, losses = torch.zeros(4).double(), torch.zeros(4).double(), []
    for number, rate in enumerate((0.1, 0.3)):
        result = training_step(
            bowl, optimizer, batch, seed=0, step=number, learning_rate=rate, clip_norm=4.0, micro_batch_size=2,
            precision="fp32",
        )  # fmt: skip
        losses.append(sum(float(result.sums[name] / result.counts[name]) for name in result.sums))
        gradient = 2 * (weights - 3) * torch.tensor([1, 1, 2, 2])
        assert float(result.gradient_norm) == pytest.approx(float(gradient.norm()))
        gradient *= 4.0 / gradient.norm()
        mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
        corrected = mean / (1 - 0.9 ** (number + 1)), (square / (1 - 0.99 ** (number + 1))).sqrt()
        weights = weights * (1 - rate * decay) - rate * corrected[0] / (corrected[1] + 1e-6)
        torch.testing.assert_close(torch.cat([p.detach().flatten() for p in bowl.parameters()]), weights.float())
    assert losses[1] < losses[0]


def test_learning_rate_is_decay_times_warm_up() -> None:
    """Values of google-research/electra's rule: lr (1 - t/T) min(1, t/W), with t counted from 1 in the warm-up."""
    rates = [learning_rate_at(t, 100, 2.0, 10) for t in (0, 4, 9, 50, 99)]
    assert rates == pytest.approx([2.0 * 0.1, 2.0 * 0.96 * 0.5, 2.0 * 0.91, 2.0 * 0.5, 2.0 * 0.01])
    assert learning_rate_at(0, 100, 2.0, 0) == 2.0


@pytest.mark.parametrize("backbone", ["bert", "transformer"])
@pytest.mark.parametrize("micro", [1, 2, 4])
def test_micro_batches_change_nothing(tmp_path: Path, backbone: str, micro: int) -> None:
    """The same masks and draws, the same losses, the same gradient, whatever the split; rows differ in length."""
    made = experiment(tmp_path, discriminator=DISCRIMINATORS[backbone])
    made.run.optimizer.step = lambda: None  # type: ignore[method-assign]  # keep the gradients to look at
    made.run.optimizer.zero_grad = lambda **_: None  # type: ignore[method-assign]
    whole = step(made)
    expected = {n: p.grad.clone() for n, p in made.run.objective.named_parameters()}
    made.run.objective.zero_grad()
    split = step(made, micro=micro)
    for name in whole.sums:
        assert split.counts[name] == whole.counts[name]
        torch.testing.assert_close(split.sums[name], whole.sums[name])
    torch.testing.assert_close(split.gradient_norm, whole.gradient_norm)
    for name, p in made.run.objective.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_changes_nothing(tmp_path: Path, poison: float) -> None:
    """Weights, moments and step counts stay as they were, and the next good step is as if nothing had been."""
    made, clean = experiment(tmp_path), experiment(tmp_path)
    step(made), step(clean)
    before = [p.detach().clone() for p in made.run.objective.parameters()]
    table = made.run.objective.discriminator.embeddings.norm.weight
    kept = table.detach().clone()
    table.data[0] = poison
    result = step(made, number=1)
    assert not result.finite
    table.data.copy_(kept)
    assert all(torch.equal(a, b) for a, b in zip(before, made.run.objective.parameters(), strict=True))
    for one, two in zip(*(m.run.optimizer.state.values() for m in (made, clean)), strict=True):
        assert all(torch.equal(one[key], two[key]) for key in one)
    for each in (made, clean):
        assert step(each, number=2).finite
    for one, two in zip(*(m.run.objective.parameters() for m in (made, clean)), strict=True):
        assert torch.equal(one, two)


def test_bf16_keeps_weights_and_losses_in_float32(tmp_path: Path) -> None:
    made = experiment(tmp_path)
    made.run.objective.train()
    result = training_step(
        made.run.objective, made.run.optimizer, made.train.training_batch(0, 0, 8, made.device),
        seed=0, step=0, learning_rate=1e-3, clip_norm=1.0, micro_batch_size=8, precision="bf16",
    )  # fmt: skip
    assert result.finite
    assert {s.dtype for s in result.sums.values()} == {torch.float32}
    assert {p.dtype for p in made.run.objective.parameters()} == {torch.float32}
    full = step(experiment(tmp_path))
    for name in full.sums:
        torch.testing.assert_close(result.sums[name], full.sums[name], rtol=0.05, atol=0)
        assert result.sums[name] != full.sums[name], "bf16 computed nothing"


def test_steps_of_each_budget(tmp_path: Path) -> None:
    """Steps, tokens and FLOPs buy whole steps; too little for one is refused."""
    priced = experiment(tmp_path).plan.flops.per_step
    for budget, steps in (("steps: 7", 7), (f"tokens: {16 * 8 * 3 + 5}", 3), (f"flops: {priced * 4.5}", 4)):
        made = experiment(tmp_path, train=f"{{{budget}, batch_size: 8, precision: fp32}}")
        assert made.plan.steps == steps
    for budget in ("tokens: 100", "flops: 10.0"):
        with pytest.raises(Exception, match="does not pay for one step"):
            experiment(tmp_path, train=f"{{{budget}, batch_size: 8, precision: fp32}}")
