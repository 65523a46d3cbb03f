"""The laws of optimizers find mistakes: each one by the law for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from electra_lab.testing import OptimizerContract
from tests.electra_lab.testing.hold import hold


class Momentum(optim.Optimizer):
    """A lawful optimizer: gradient descent with momentum."""

    def __init__(self, parameters: Any, learning_rate: float, /) -> None:
        super().__init__([p for _, p in parameters], {"lr": learning_rate})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["mean"] = torch.zeros_like(parameter)
                self.update(parameter, state, group["lr"])

    def update(self, parameter: nn.Parameter, state: dict[str, Any], rate: float) -> None:
        state["mean"].lerp_(parameter.grad, 0.5)
        parameter.sub_(state["mean"] * rate)

    def state_bytes(self, parameter: Tensor) -> int:
        return 4 * parameter.numel()


def counted(self: Any, parameter: nn.Parameter, state: dict[str, Any], rate: float) -> None:
    """Count the steps where checkpoints do not find them."""
    self.taken = getattr(self, "taken", 0) + 1
    Momentum.update(self, parameter, state, rate / self.taken**0.1)


@torch.no_grad()
def from_ones(self: Any) -> None:
    """The state is created at the first step and not from zero: undoing the first step leaves a trace."""
    for parameter in self.param_groups[0]["params"]:
        if not self.state[parameter]:
            self.state[parameter]["mean"] = torch.ones_like(parameter)
    Momentum.step(self)


RATE = "the_learning_rate_of_its_groups_is_the_one_that_counts"
# The law that finds a mistake, its message, and the methods with the mistake.
MISTAKES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "still": ("the_loss_falls", r"from \d\.\d+ to \d\.\d+ in 60 steps",
              {"update": lambda self, parameter, state, rate: Momentum.update(self, parameter, state, rate / 1000)}),
    "own rate": (RATE, "assert False",
                 {"update": lambda self, parameter, state, rate: Momentum.update(self, parameter, state, 0.05)}),
    "other rate": (RATE, "0.025 == 0.05",
                   {"__init__": lambda self, parameters, rate, /: Momentum.__init__(self, parameters, rate / 2)}),
    "hidden state": ("resuming_changes_nothing", "they differ by", {"update": counted}),
    "begins at one": ("a_step_that_is_not_finite_changes_nothing", "they differ by", {"step": from_ones}),
    "forgets": ("state_bytes_are_those_that_it_keeps", r"of shape \[5, 6\]", {"state_bytes": lambda self, _: 0}),
}  # fmt: skip


def run(kind: type[Momentum], law: str, tmp_path: Path) -> None:
    suite = type("Suite", (OptimizerContract,), {"name": "mine", "learning_rate": 0.05, "component": lambda _: kind})
    hold(suite(), law, tmp_path=tmp_path)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, tmp_path: Path) -> None:
    law, reason, changed = MISTAKES[mistake]
    run(Momentum, law, tmp_path)
    with pytest.raises(AssertionError, match=reason):
        run(type("Wrong", (Momentum,), changed), law, tmp_path)
