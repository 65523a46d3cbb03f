"""Adafactor against torch.optim.Adafactor: weights and averages, step by step."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from electra_lab.optimizers.adafactor import Adafactor

SHAPES = {"matrix": (6, 5), "vector": (7,), "cube": (3, 4, 5), "scalar": (), "row": (1, 8), "column": (8, 1)}
STEPS = 50


def parameters() -> list[tuple[str, nn.Parameter]]:
    numbers = torch.Generator().manual_seed(0)
    return [(name, nn.Parameter(torch.randn(shape, generator=numbers))) for name, shape in SHAPES.items()]


def gradients(step: int) -> list[Tensor]:
    """Mostly small, but 40 times as large at every seventh step, when the update is clipped."""
    numbers = torch.Generator().manual_seed(100 + step)
    size = 40.0 if step % 7 == 6 else 1.0
    return [size * torch.randn(shape, generator=numbers) * 10.0 ** -(n % 3) for n, shape in enumerate(SHAPES.values())]


def theirs(named: list[tuple[str, nn.Parameter]], rate: float, **options: float) -> torch.optim.Adafactor:
    decay = options.pop("weight_decay", 0.0)
    groups = [
        {"params": [p for _, p in named if p.ndim >= 2], "weight_decay": decay},
        {"params": [p for _, p in named if p.ndim < 2], "weight_decay": 0.0},
    ]
    names = {"decay": "beta2_decay", "clip": "d"}
    settings: dict[str, Any] = {names[name]: value for name, value in options.items() if name in names}
    return torch.optim.Adafactor(groups, lr=rate, eps=(None, options.get("epsilon", 1e-3)), foreach=False, **settings)


def trained(optimizer: torch.optim.Optimizer, named: list[tuple[str, nn.Parameter]], steps: int = STEPS) -> Any:
    for step in range(steps):
        for (_, parameter), gradient in zip(named, gradients(step), strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        yield step


@pytest.mark.parametrize(
    ("rate", "options"),  # a rate of 0.5 is above 1 / sqrt(step) after four steps
    [(0.01, {}), (0.5, {"weight_decay": 0.1}), (0.05, {"clip": 1e9}),
     (0.05, {"weight_decay": 0.3, "decay": -0.5, "epsilon": 0.7, "clip": 1.5})],
    ids=str,
)  # fmt: skip
def test_every_step_is_that_of_torch(rate: float, options: dict[str, float]) -> None:
    """Weights, the averages of rows and columns, and those of vectors, to 1e-6."""
    ours, others = parameters(), parameters()
    optimizer, reference = Adafactor(ours, rate, **options), theirs(others, rate, **options)
    for step, _ in zip(trained(optimizer, ours), trained(reference, others), strict=True):
        for (name, tensor), (_, reference_tensor) in zip(ours, others, strict=True):
            close(tensor, reference_tensor, f"{name} at step {step}")
            mine, other = optimizer.state[tensor], reference.state[reference_tensor]
            assert float(mine["step"]) == float(other["step"]) == step + 1
            pairs = {"rows": "row_var", "columns": "col_var"} if tensor.ndim > 1 else {"variance": "variance"}
            assert mine.keys() == {"step", *pairs}
            for key, their_key in pairs.items():
                close(mine[key], other[their_key], f"{key} of {name} at step {step}")


def close(found: Tensor, expected: Tensor, what: str) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6, msg=lambda text: f"{what}: {text}")


def test_one_step_by_hand() -> None:
    weight = nn.Parameter(torch.full((2, 2), 2.0))
    weight.grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    optimizer = Adafactor([("w", weight)], 0.1)
    optimizer.step()
    assert optimizer.state[weight]["rows"].flatten().tolist() == [2.5, 12.5]
    assert optimizer.state[weight]["columns"].flatten().tolist() == [5.0, 10.0]
    # The second moments: rows times columns over their mean 7.5.
    update = weight.grad / (torch.tensor([[2.5 * 5, 2.5 * 10], [12.5 * 5, 12.5 * 10]]) / 7.5).sqrt()
    clipped = update / max(1.0, float(update.square().mean().sqrt()))
    torch.testing.assert_close(weight.detach(), 2 - 0.1 * 2 * clipped)


def test_a_gradient_of_zeros_is_harmless() -> None:
    named = parameters()
    optimizer = Adafactor(named, 0.1)
    before = [p.detach().clone() for _, p in named]
    for _ in range(2):
        for _, parameter in named:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    assert all(torch.equal(p, old) for (_, p), old in zip(named, before, strict=True))
