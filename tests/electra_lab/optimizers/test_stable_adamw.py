"""StableAdamW against the paper's algorithm in float64, with debiased betas, over steps with spikes."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from electra_lab.optimizers.stable_adamw import StableAdamW
from electra_lab.training.loop import Run
from electra_lab.training.step import Learner

SHAPES = {"matrix": (6, 5), "vector": (7,), "cube": (3, 4, 5), "scalar": ()}
STEPS = 60


def parameters() -> list[tuple[str, nn.Parameter]]:
    numbers = torch.Generator().manual_seed(0)
    return [(name, nn.Parameter(torch.randn(shape, generator=numbers).double())) for name, shape in SHAPES.items()]


def gradients(step: int) -> dict[str, Tensor]:
    """Of different sizes, some below epsilon; at every seventh step a spike; and none of the cube before step 5."""
    numbers = torch.Generator().manual_seed(100 + step)
    size = 50.0 if step % 7 == 6 else 1.0
    found = {}
    for number, (name, shape) in enumerate(SHAPES.items()):
        found[name] = size * torch.randn(shape, generator=numbers).double() * 10.0 ** -(3 * number)
    return {name: gradient for name, gradient in found.items() if name != "cube" or step >= 5}


def plainly(
    rates: list[float], decay: float, peak: float, betas: tuple[float, float], epsilon: float, clipped: list[float]
) -> Iterator[dict[str, Tensor]]:
    """Yield the weights after each step: the paper's pseudo code line by line, for each tensor."""
    weights = {name: parameter.detach().clone() for name, parameter in parameters()}
    v = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    u, taken = {name: torch.zeros_like(weight) for name, weight in weights.items()}, dict.fromkeys(weights, 0)
    for step, rate in enumerate(rates):
        for name, g in gradients(step).items():
            taken[name] += 1
            t = taken[name]
            beta1, beta2 = (beta * (1 - beta ** (t - 1)) / (1 - beta**t) for beta in betas)
            v[name] = beta1 * v[name] + (1 - beta1) * g
            u[name] = beta2 * u[name] + (1 - beta2) * g**2
            rms = float((g**2 / u[name].clamp(min=epsilon**2)).mean().sqrt())
            clipped.append(rms)
            eta = rate / max(1.0, rms)
            lost = eta / peak * (decay if weights[name].ndim > 1 else 0.0)
            weights[name] = weights[name] - lost * weights[name] - eta * v[name] / (u[name].sqrt() + epsilon)
        yield {name: weight.clone() for name, weight in weights.items()}


@pytest.mark.parametrize("decoupled", [False, True])
def test_every_step_is_that_of_the_paper(decoupled: bool) -> None:
    """Schedules change `lr`; decoupled decay follows the schedule, not the peak."""
    peak, decay, betas, epsilon = 0.03, 0.2, (0.9, 0.95), 1e-6
    rates = [peak * min(1.0, (step + 1) / 10) for step in range(STEPS)]
    named, clipped = parameters(), list[float]()
    optimizer = StableAdamW(named, peak, weight_decay=decay, decoupled=decoupled, betas=betas, epsilon=epsilon)
    Run(Learner(nn.Module()), optimizer)  # records the peak
    expected = plainly(rates, decay, peak if decoupled else 1.0, betas, epsilon, clipped)
    for step, weights in enumerate(expected):
        for group in optimizer.param_groups:
            group["lr"] = rates[step]
        given = gradients(step)
        for name, parameter in named:
            parameter.grad = given.get(name)
        optimizer.step()
        for name, parameter in named:
            torch.testing.assert_close(parameter.detach(), weights[name], rtol=1e-6, atol=1e-7, msg=f"{name} {step}")
    assert max(clipped) > 2.0
