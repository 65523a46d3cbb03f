"""Laws of optimizers."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from electra_lab.storage.checkpoint import load_newest, save, tensors_of
from electra_lab.testing.common import Contract, worst
from electra_lab.training.step import update
from registry import optimizers

STATE = {  # of a run without steps
    "tokens": 0,
    "skipped": 0,
    "window": {"steps": 0, "names": [], "totals": None},
    "trouble": {"rejected": 0, "average": 0.0, "accepted": 0, "first": -1, "spiked": False},
}


class OptimizerContract(Contract):
    """Laws of optimizers, on a linear regression.

    learning_rate  learning rate at which the loss falls by half within `steps`
    """

    registry = optimizers
    learning_rate = 0.05
    steps = 60

    def built(self, device: str) -> tuple[nn.Module, Any]:
        """Return a small module, the same each time, and its optimizer."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 1)).to(device)
        return module, self.component()(list(module.named_parameters()), self.learning_rate)

    def loss(self, module: nn.Module, step: int) -> Tensor:
        device = next(module.parameters()).device
        x = torch.randn(32, 6, generator=torch.Generator().manual_seed(step)).to(device)
        error: Tensor = module(x).squeeze(-1) - x[:, 0] * 2 + x[:, 1]
        return error.square().mean()

    def train(self, module: nn.Module, optimizer: Any, steps: range, poisoned: int | None = None) -> None:
        """Take steps; before the step `poisoned` comes one more, whose gradient is not finite."""
        for step in steps:
            for finite in (False, True) if step == poisoned else (True,):
                loss = self.loss(module, step)
                loss.backward()  # type: ignore[no-untyped-call]
                if not finite:
                    for parameter in module.parameters():
                        parameter.grad = torch.full_like(parameter, float("nan"))
                update(optimizer, torch.tensor(finite, device=loss.device))
                optimizer.zero_grad(set_to_none=True)

    def test_the_loss_falls(self, device: str) -> None:
        module, optimizer = self.built(device)
        before = float(self.loss(module, -1).detach())
        self.train(module, optimizer, range(self.steps))
        after = float(self.loss(module, -1).detach())
        assert after < before / 2, f"from {before:.3f} to {after:.3f} in {self.steps} steps"

    def test_a_step_that_is_not_finite_changes_nothing(self, device: str) -> None:
        """Neither weights nor state, at the first step and at later ones: it continues as if it had not happened."""
        clean = self.built(device)
        self.train(*clean, range(6))
        for poisoned in (0, 3):
            module, optimizer = self.built(device)
            self.train(module, optimizer, range(6), poisoned)
            assert_equal(tensors(*clean), tensors(module, optimizer))

    def test_resuming_changes_nothing(self, device: str, tmp_path: Path) -> None:
        """All of its state is in the checkpoint."""
        uninterrupted, first, second = (self.built(device) for _ in range(3))
        self.train(*uninterrupted, range(6))
        self.train(*first, range(3))
        save(tmp_path / "checkpoints", 3, tensors_of(*first), STATE, keep=1)
        state = load_newest(tmp_path / "checkpoints", *second, print)
        assert state is not None
        assert_equal(tensors(*first), tensors(*second))
        self.train(*second, range(3, 6))
        assert_equal(tensors(*uninterrupted), tensors(*second))

    def test_state_bytes_are_those_that_it_keeps(self) -> None:
        module, optimizer = self.built("cpu")
        self.train(module, optimizer, range(1))
        for name, parameter in module.named_parameters():
            size = sum(value.nbytes for value in optimizer.state[parameter].values())
            assert optimizer.state_bytes(parameter) == size, f"{name} of shape {list(parameter.shape)}"

    def test_the_learning_rate_of_its_groups_is_the_one_that_counts(self) -> None:
        """At a rate of zero nothing moves."""
        module, optimizer = self.built("cpu")
        before = [parameter.clone() for parameter in module.parameters()]
        for group in optimizer.param_groups:
            assert group["lr"] == self.learning_rate
            group["lr"] = 0.0
        self.train(module, optimizer, range(2))
        assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


def tensors(module: nn.Module, optimizer: Any) -> dict[str, Tensor]:
    """Return weights and state by name."""
    tensors = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    for name, parameter in module.named_parameters():
        tensors |= {f"{key} of {name}": value.clone() for key, value in optimizer.state[parameter].items()}
    return tensors


def assert_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys(), f"other state: {first.keys() ^ second.keys()}"
    for name, value in first.items():
        assert torch.equal(value, second[name]), f"{name}: {worst(value, second[name])}"
