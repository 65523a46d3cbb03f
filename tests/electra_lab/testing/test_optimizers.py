"""The laws of optimizers bite: each mistake is found by the law that is about it."""

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


class Still(Momentum):
    def update(self, parameter: nn.Parameter, state: dict[str, Any], rate: float) -> None:
        super().update(parameter, state, rate / 1000)


class OwnRate(Momentum):
    def update(self, parameter: nn.Parameter, state: dict[str, Any], rate: float) -> None:
        super().update(parameter, state, 0.05)


class OtherRate(Momentum):
    def __init__(self, parameters: Any, learning_rate: float, /) -> None:
        super().__init__(parameters, learning_rate / 2)


class HiddenState(Momentum):
    """Counts its steps where no checkpoint looks."""

    taken = 0

    def update(self, parameter: nn.Parameter, state: dict[str, Any], rate: float) -> None:
        self.taken += 1
        super().update(parameter, state, rate / self.taken**0.1)


class BeginsAtOne(Momentum):
    """Its state appears at the first step, and not at zero: a first step that is undone leaves something."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            if not self.state[parameter]:
                self.state[parameter]["mean"] = torch.ones_like(parameter)
        super().step()


class Forgets(Momentum):
    def state_bytes(self, parameter: Tensor) -> int:
        return 0


MISTAKES: dict[type[Momentum], tuple[str, str]] = {
    Still: ("the_loss_falls", r"from \d\.\d+ to \d\.\d+ in 60 steps"),
    OwnRate: ("the_learning_rate_of_its_groups_is_the_one_that_counts", "assert False"),
    OtherRate: ("the_learning_rate_of_its_groups_is_the_one_that_counts", "0.025 == 0.05"),
    HiddenState: ("resuming_changes_nothing", "they differ by"),
    BeginsAtOne: ("a_step_that_is_not_finite_changes_nothing", "they differ by"),
    Forgets: ("state_bytes_are_those_that_it_keeps", r"of shape \[5, 6\]"),
}


def run(kind: type[Momentum], law: str, tmp_path: Path) -> None:
    class Suite(OptimizerContract):
        name = "mine"
        learning_rate = 0.05

        def component(self) -> Any:
            return kind

    hold(Suite(), law, tmp_path=tmp_path)


@pytest.mark.parametrize("kind", MISTAKES, ids=lambda kind: kind.__name__)
def test_a_mistake_is_found(kind: type[Momentum], tmp_path: Path) -> None:
    law, reason = MISTAKES[kind]
    with pytest.raises(AssertionError, match=reason):
        run(kind, law, tmp_path)


@pytest.mark.parametrize("law", sorted({law for law, _ in MISTAKES.values()}))
def test_a_lawful_optimizer_passes(law: str, tmp_path: Path) -> None:
    run(Momentum, law, tmp_path)
