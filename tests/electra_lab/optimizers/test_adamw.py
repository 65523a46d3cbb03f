"""AdamW with the lab's options, by hand; that of google-research/electra, against its formula in float64."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from electra_lab.optimizers.adamw import AdamW
from electra_lab.optimizers.adamw_no_bias_correction import AdamWNoBiasCorrection
from electra_lab.training.step import is_fused
from registry import optimizers


def test_two_steps_by_hand() -> None:
    """A matrix with decay and a vector without. The first step equals the rate for a gradient of any size."""
    matrix, vector = nn.Parameter(torch.tensor([[2.0, -1.0]])), nn.Parameter(torch.tensor([3.0]))
    optimizer = AdamW([("m", matrix), ("v", vector)], 0.1, weight_decay=0.5, betas=(0.9, 0.99), epsilon=1e-6)
    matrix.grad, vector.grad = torch.tensor([[4.0, -0.5]]), torch.tensor([1000.0])
    optimizer.step()
    # Moments 0.1 g and 0.01 g^2, corrected by 0.1 and 0.01: g / |g|. The matrix is first shrunk by 1 - 0.1 * 0.5.
    assert matrix.tolist()[0] == pytest.approx([2 * 0.95 - 0.1, -1 * 0.95 + 0.1], abs=1e-6)
    assert vector.tolist() == pytest.approx([2.9], abs=1e-6)
    matrix.grad, vector.grad = torch.zeros(1, 2), torch.tensor([0.0])
    optimizer.step()
    # Moments 0.09 g and 0.0099 g^2, corrected by 0.19 and 0.0199.
    size = 0.1 * (0.09 / 0.19) / math.sqrt(0.0099 / 0.0199)
    assert matrix.tolist()[0] == pytest.approx([1.8 * 0.95 - size, -0.85 * 0.95 + size], abs=1e-6)
    assert vector.tolist() == pytest.approx([2.9 - size], abs=1e-6)


def test_epsilon_is_added_to_the_root() -> None:
    weight = nn.Parameter(torch.tensor([[1.0]]))
    optimizer = AdamW([("w", weight)], 0.5, weight_decay=0.0, epsilon=3.0)
    weight.grad = torch.tensor([[1.0]])
    optimizer.step()
    assert weight.item() == pytest.approx(1 - 0.5 * 1 / (1 + 3), abs=1e-6)


def test_the_defaults_are_those_of_google_research() -> None:
    group = AdamW([("w", nn.Parameter(torch.ones(2, 2)))], 1e-3).param_groups[0]
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (1e-3, (0.9, 0.999), 1e-6, 0.01)
    assert group["fused"], "only fused kernels skip a non-finite step on the device"


SHAPES = {"matrix": (6, 5), "bias": (7,), "cube": (3, 4, 5), "scalar": (), "row": (1, 8)}
STEPS, RATE = 40, 0.02


def parameters() -> list[tuple[str, nn.Parameter]]:
    numbers = torch.Generator().manual_seed(0)
    return [(name, nn.Parameter(torch.randn(shape, generator=numbers))) for name, shape in SHAPES.items()]


def gradients(step: int) -> list[Tensor]:
    numbers = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=numbers) * 10.0 ** (1 - n) for n, shape in enumerate(SHAPES.values())]


class Official:
    """AdamWeightDecayOptimizer.apply_gradients for one variable, in the order of its formula."""

    def __init__(self, value: Tensor, decay: float, betas: tuple[float, float], epsilon: float) -> None:
        self.value = value.detach().double().numpy().copy()
        self.m, self.v = np.zeros_like(self.value), np.zeros_like(self.value)
        self.decay, self.betas, self.epsilon = decay, betas, epsilon

    def step(self, gradient: Tensor, rate: float) -> None:
        g, (first, second) = gradient.double().numpy(), self.betas
        self.m = first * self.m + (1 - first) * g
        self.v = second * self.v + (1 - second) * np.square(g)
        update = self.m / (np.sqrt(self.v) + self.epsilon)
        update = update + self.decay * self.value
        self.value = self.value - rate * update


OTHERS = [{"weight_decay": 0.5, "betas": (0.8, 0.95), "epsilon": 1e-3},
          {"weight_decay": 0.0, "betas": (0.0, 0.9), "epsilon": 0.3}]  # fmt: skip


@pytest.mark.parametrize("options", [{}, *OTHERS], ids=str)
def test_every_step_is_the_official_one(options: dict[str, Any]) -> None:
    """Weights and both averages, while the learning rate follows a schedule."""
    named = parameters()
    settings = {"weight_decay": 0.01, "betas": (0.9, 0.999), "epsilon": 1e-6} | options
    optimizer = AdamWNoBiasCorrection(named, RATE, **options)
    others = []
    for _, parameter in named:
        decay = settings["weight_decay"] if parameter.ndim >= 2 else 0.0
        others.append(Official(parameter, decay, settings["betas"], settings["epsilon"]))
    for step in range(STEPS):
        rate = RATE * (1 - step / STEPS)
        for group in optimizer.param_groups:
            group["lr"] = rate
        for (_, parameter), gradient in zip(named, gradients(step), strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        for (name, parameter), other, gradient in zip(named, others, gradients(step), strict=True):
            other.step(gradient, rate)
            state = optimizer.state[parameter]
            assert state.keys() == {"exp_avg", "exp_avg_sq"}
            for what, mine, theirs in (
                (name, parameter.detach(), other.value),
                (f"m of {name}", state["exp_avg"], other.m),
                (f"v of {name}", state["exp_avg_sq"], other.v),
            ):
                np.testing.assert_allclose(mine.numpy(), theirs, rtol=2e-6, atol=2e-6, err_msg=f"{what} at step {step}")


def test_options_and_defaults_are_those_of_adamw() -> None:
    names = "adamw_no_bias_correction", "adamw"
    mine, theirs = (optimizers.get(name).schema.model_json_schema()["properties"] for name in names)
    assert mine == theirs


def test_its_kernel_unscales_gradients_and_skips_steps_by_itself() -> None:
    """So that no backup copies are needed, and torch's GradScaler leaves both to it."""
    assert is_fused(AdamWNoBiasCorrection(parameters(), 0.1))
    plain, scaled = parameters(), parameters()
    for named, scale in ((plain, 1.0), (scaled, 8.0)):
        optimizer = AdamWNoBiasCorrection(named, 0.1)
        optimizer.grad_scale = torch.tensor(scale)
        for finite in (True, False, True):
            optimizer.found_inf = torch.tensor(0.0 if finite else 1.0)
            for (_, parameter), gradient in zip(named, gradients(0), strict=True):
                parameter.grad = scale * gradient if finite else torch.full_like(gradient, float("nan"))
            optimizer.step()
    assert all(torch.equal(found, same) for (_, found), (_, same) in zip(plain, scaled, strict=True))
    assert all(parameter.isfinite().all() for _, parameter in plain)
