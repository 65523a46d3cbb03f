"""The optimizer step: micro-batches, clipping, the learning rate, steps that are not finite."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from electra_lab.testing.common import as_batch
from electra_lab.training.loop import Run
from electra_lab.training.random import seed_global
from electra_lab.training.step import Learner, backward, training_step, update
from registry import Batch, Losses, Objective, Term, optimizers
from tests.electra_lab.training.tiny import DISCRIMINATORS, experiment, parameters, step


class Bowl(Objective, nn.Module):
    """The squared distances of a matrix and a vector from 3, as two terms, the second of twice the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.vector = nn.Parameter(torch.tensor([[1.0, 8.0]])), nn.Parameter(torch.tensor([-2.0, 3.5]))

    def forward(self, batch: Batch, rng: Any) -> Losses:
        count = batch.attention_mask.sum()
        parts = {"matrix": (self.matrix, 1.0), "vector": (self.vector, 2.0)}
        return Losses(
            {name: Term((p - 3).square().sum() * count, count, weight) for name, (p, weight) in parts.items()}
        )


SEVENS = as_batch(torch.full((2, 3), 7))


def bowl_step(bowl: nn.Module, optimizer: Any, batch: Batch = SEVENS, **options: Any) -> Any:
    settings: dict[str, Any] = {"seed": 0, "step": 0, "rate": 1.0, "clip_norm": 1e9, "micro_batch_size": 2}
    return training_step(Learner(bowl), optimizer, batch, **(settings | {"precision": "fp32"} | options))


def test_two_steps_are_those_of_adamw_worked_out_by_hand() -> None:
    """Clipping by the global norm, the moments with their corrections, decay of the matrix alone."""
    bowl = Bowl()
    optimizer = optimizers.get("adamw").component(
        list(bowl.named_parameters()), 0.5, betas=(0.9, 0.99), epsilon=1e-6, weight_decay=0.2
    )
    Run(Learner(bowl), optimizer)
    weights, decay = torch.tensor([1.0, 8.0, -2.0, 3.5]).double(), torch.tensor([0.2, 0.2, 0.0, 0.0])
    mean, square, losses = torch.zeros(4).double(), torch.zeros(4).double(), []
    for number, rate in enumerate((0.1, 0.3)):
        result = bowl_step(bowl, optimizer, step=number, rate=rate / 0.5, clip_norm=4.0)
        losses.append(sum(float(result.sums[name] / result.counts[name]) for name in result.sums))
        gradient = 2 * (weights - 3) * torch.tensor([1, 1, 2, 2])
        assert float(result.gradient_norm) == pytest.approx(float(gradient.norm()))
        gradient *= 4.0 / gradient.norm()
        mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
        corrected = mean / (1 - 0.9 ** (number + 1)), (square / (1 - 0.99 ** (number + 1))).sqrt()
        weights = weights * (1 - rate * decay) - rate * corrected[0] / (corrected[1] + 1e-6)
        torch.testing.assert_close(torch.cat([p.detach().flatten() for p in bowl.parameters()]), weights.float())
    assert losses[1] < losses[0]


def test_each_group_keeps_its_own_learning_rate_times_the_factor() -> None:
    """Plain gradient descent, one rate for the matrix and another for the vector."""
    bowl = Bowl()
    optimizer = torch.optim.SGD([{"params": [bowl.matrix], "lr": 0.1}, {"params": [bowl.vector], "lr": 0.01}])
    Run(Learner(bowl), optimizer)
    for factor in (0.5, 0.25):
        matrix, vector = bowl.matrix.detach().clone(), bowl.vector.detach().clone()
        bowl_step(bowl, optimizer, rate=factor)
        torch.testing.assert_close(bowl.matrix.detach(), matrix - factor * 0.1 * 2 * (matrix - 3))
        torch.testing.assert_close(bowl.vector.detach(), vector - factor * 0.01 * 4 * (vector - 3))
    Run(Learner(bowl), optimizer)  # a second one, as after a resume, must not start from the scaled rate
    assert [group["initial_lr"] for group in optimizer.param_groups] == [0.1, 0.01]


def test_a_gradient_within_the_norm_is_not_clipped_and_the_next_one_begins_at_zero() -> None:
    bowl = Bowl()
    optimizer = torch.optim.SGD(bowl.parameters(), lr=0.0)
    Run(Learner(bowl), optimizer)
    gradients = []
    optimizer.step = lambda: gradients.append(bowl.matrix.grad.clone())
    free = float(bowl_step(bowl, optimizer).gradient_norm)
    bowl_step(bowl, optimizer, clip_norm=free * 1.01)
    assert float(bowl_step(bowl, optimizer, clip_norm=free / 2).clipped_norm(free / 2)) == pytest.approx(free / 2)
    assert float(bowl_step(bowl, optimizer, clip_norm=1e300).clipped_norm(1e300)) == free  # beyond float32
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)
    torch.testing.assert_close(gradients[2], gradients[0] / 2)
    assert bowl.matrix.grad is None


@pytest.mark.parametrize(("backbone", "micro"), [("bert", 1), ("transformer", 2), ("bert", 4)])
def test_micro_batches_change_nothing(tmp_path: Path, backbone: str, micro: int) -> None:
    """The same masks, draws, losses and gradient for any split; rows differ in length."""
    made = experiment(tmp_path, discriminator=DISCRIMINATORS[backbone])
    objective = made.run.learner.objective
    made.run.optimizer.step = lambda: None  # keep the gradients for comparison
    made.run.optimizer.zero_grad = lambda **_: None
    sizes: list[int] = []
    objective.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    whole = step(made)
    expected = {n: p.grad.clone() for n, p in objective.named_parameters() if p.grad is not None}
    objective.zero_grad()
    split = step(made, micro=micro)
    assert sizes == [8, *[micro] * (8 // micro)]
    for name in whole.sums:
        assert split.counts[name] == whole.counts[name]
        torch.testing.assert_close(split.sums[name], whole.sums[name])
    torch.testing.assert_close(split.gradient_norm, whole.gradient_norm)
    for name, p in objective.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], rtol=1e-4, atol=1e-6)


def test_terms_are_divided_by_the_counts_of_the_whole_batch() -> None:
    """By hand: halves with 1 and 3 real tokens weigh 1 to 3, and a term that counts nothing does not divide by 0."""

    class Counts(Objective, nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(2.0))

        def forward(self, batch: Batch, rng: Any) -> Losses:
            real = batch.attention_mask.sum()
            values = (batch.tokens * batch.attention_mask).sum()
            return Losses(
                {"some": Term(self.weight * values, real, 1.5), "none": Term(self.weight * 0.0, real * 0, 1.0)}
            )

        def counts(self, batch: Batch, rng: Any) -> dict[str, torch.Tensor]:
            return {"some": batch.attention_mask.sum(), "none": batch.attention_mask.sum() * 0}

    mask = torch.tensor([[True, False, False], [True, True, True]])
    batch = as_batch(torch.tensor([[5, 9, 9], [6, 7, 8]]), mask)
    for micro in (1, 2):
        module = Counts()
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        Run(Learner(module), optimizer)
        result = bowl_step(module, optimizer, batch, micro_batch_size=micro)
        assert float(module.weight.detach()) == pytest.approx(2.0 - 1.5 * (5 + 6 + 7 + 8) / 4)
        assert (float(result.sums["some"]), int(result.counts["some"])) == (2.0 * 26, 4)
        assert result.weights == {"some": 1.5, "none": 1.0}


def test_backward_adds_weighted_terms_over_their_own_counts_if_none_are_given() -> None:
    x = torch.tensor(1.0, requires_grad=True)
    backward({"a": Term(3 * x, torch.tensor(2), 4.0), "b": Term(5 * x, torch.tensor(0), torch.tensor(0.5))})
    assert float(x.grad) == pytest.approx(4 * 3 / 2 + 0.5 * 5 / 1)


# Steps that are not finite


class Poisoned(Bowl):
    how = "nothing"

    def forward(self, batch: Batch, rng: Any) -> Losses:
        terms = dict(super().forward(batch, rng).terms)
        zero = (self.vector - self.vector.detach()).abs().sum()
        spoiled = {"nothing": zero, "loss": zero.detach() + float("inf"), "gradient": zero.sqrt()}[self.how]
        terms["vector"] = Term(terms["vector"].sum + spoiled, terms["vector"].count, 2.0)
        return Losses(terms)


OPTIMIZERS = {
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
    "plain": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("how", ["loss", "gradient"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("first", [True, False])
def test_any_optimizer_is_as_if_the_step_had_not_been(name: str, how: str, first: bool) -> None:
    """A non-finite loss with a finite gradient, and the reverse; also at the very first step."""
    bowls = [Poisoned(), Poisoned()]
    optimizers = [OPTIMIZERS[name](list(bowl.parameters())) for bowl in bowls]
    for bowl, optimizer in zip(bowls, optimizers, strict=True):
        Run(Learner(bowl), optimizer)
        if not first:
            assert bowl_step(bowl, optimizer).accepted
    bowls[0].how = how
    assert not bowl_step(bowls[0], optimizers[0]).accepted
    bowls[0].how = "nothing"
    for bowl, optimizer in [*zip(bowls, optimizers, strict=True)] * 2:
        assert bowl_step(bowl, optimizer, clip_norm=1.0).accepted
    for parameter, other in zip(*(bowl.parameters() for bowl in bowls), strict=True):
        assert torch.equal(parameter, other)
        states = optimizers[0].state[parameter], optimizers[1].state[other]
        assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_update_leaves_parameters_without_a_gradient_alone(name: str) -> None:
    """A frozen stage of an objective has no gradient."""
    bowl = Bowl()
    optimizer = OPTIMIZERS[name](list(bowl.parameters()))
    bowl.matrix.grad = torch.ones_like(bowl.matrix)
    before = bowl.vector.detach().clone()
    update(optimizer, torch.tensor(True))
    assert torch.equal(bowl.vector.detach(), before)
    assert not torch.equal(bowl.matrix.detach(), torch.tensor([[1.0, 8.0]]))


def test_bf16_keeps_weights_and_losses_in_float32(tmp_path: Path) -> None:
    made = experiment(tmp_path)
    result = step(made, precision="bf16")
    assert result.accepted
    assert {s.dtype for s in result.sums.values()} == {torch.float32}
    assert {p.dtype for p in made.run.learner.objective.parameters()} == {torch.float32}
    full = step(experiment(tmp_path))
    for name in full.sums:
        torch.testing.assert_close(result.sums[name], full.sums[name], rtol=0.05, atol=0)
        assert result.sums[name] != full.sums[name], "bf16 had no effect"


# Changes from step to step


class Changing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, int, float]] = []

    def at_step(self, seed: int, step: int) -> None:
        self.calls.append((seed, step, float(torch.rand(()))))


class Holder(Objective, nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.plain = Changing(), Changing(), nn.Linear(1, 1)
        self.freezes, self.calls = False, list[tuple[int, int]]()

    def at_step(self, seed: int, step: int) -> None:
        self.calls.append((seed, step))
        if self.freezes:
            self.second.eval()


def test_every_module_that_changes_hears_of_every_step_after_torch_was_seeded() -> None:
    """A frozen module does not; the objective, which comes first, decides what is frozen."""
    holder = Holder()
    learner = Learner(holder)
    seed_global(3, 7)
    expected = [float(torch.rand(())) for _ in range(2)]
    learner.at_step(3, 7)
    assert holder.calls == [(3, 7)]
    assert [holder.first.calls, holder.second.calls] == [[(3, 7, expected[0])], [(3, 7, expected[1])]]
    holder.freezes = True
    learner.at_step(3, 8)
    assert [call[:2] for call in holder.first.calls] == [(3, 7), (3, 8)]
    assert len(holder.second.calls) == 1
    holder.eval()
    learner.at_step(3, 9)
    assert holder.calls[-1] == (3, 9)


def test_evaluating_uses_eval_mode_and_its_own_seed_and_restores_the_state() -> None:
    for mode in (True, False):
        holder = Holder().train(mode)
        learner, drawn = Learner(holder), []
        for seed in (3, 3, 4):
            with suppress(KeyError), learner.evaluating(seed):
                assert not any(module.training for module in holder.modules())
                drawn.append(float(torch.rand(())))
                raise KeyError
            assert all(module.training == mode for module in holder.modules())
        assert drawn[0] == drawn[1] != drawn[2]


def trained(folder: Path, *changes: str, clip_norm: float = 1e9) -> dict[str, torch.Tensor]:
    """Train both networks, which share nothing, for three steps, with a negligible epsilon."""
    folder.mkdir(exist_ok=True)
    embedding, optimizer = "{dim: 8, max_length: 16, tie: none, dropout: 0.0}", "{type: adamw, epsilon: 1.0e-30}"
    made = experiment(folder, "train.learning_rate=0.01", *changes, embedding=embedding, optimizer=optimizer)
    for number in range(3):
        result = step(made, number=number, clip_norm=clip_norm)
    if result.norms:
        norms = torch.stack([*result.norms.values()])
        assert list(result.norms) == ["generator", "discriminator"]
        assert bool((norms > 0).all())
        torch.testing.assert_close(norms.norm(), result.gradient_norm)
    return parameters(made)


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor], network: str = "") -> bool:
    return all(torch.equal(first[name], second[name]) for name in first if name.startswith(network))


def test_clipping_is_all_that_two_optimizers_add_to_one(tmp_path: Path) -> None:
    """For separate networks with Adam, which also cancels the weight of a loss (Dong et al. 2023)."""
    apart, light, heavy = "train.clip=per_network", *(f"objective.discriminator_weight={w}" for w in (1.0, 64.0))
    expected = trained(tmp_path, light)
    for changes in ([apart, light], [heavy], [apart, heavy]):
        assert same(expected, trained(tmp_path, *changes))
    # With one norm, the heavy loss slows the generator down; with two norms it does not.
    slow = "optimizer.epsilon=0.01"
    together = trained(tmp_path, slow, heavy, clip_norm=0.01)
    apart_, as_light = (trained(tmp_path, slow, apart, weight, clip_norm=0.01) for weight in (heavy, light))
    assert not same(together, apart_, "generator.")
    assert same(as_light, apart_, "generator.")
    # Networks with separate rates have one norm, too. The order of its sum is another.
    for name, weight in trained(tmp_path, slow, heavy, "train.generator_rate=1.0", clip_norm=0.01).items():
        torch.testing.assert_close(weight, together[name])
