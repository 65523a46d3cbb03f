"""The end of a residual branch: torch's numbers, and what it keeps for the backward pass."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.model.residual import add_linear
from electra_lab.testing import on_each_device

D, WIDE = 24, 96


def plain(residual: Tensor, x: Tensor, linear: nn.Linear, dropout: float, gelu: bool) -> Tensor:
    return residual + F.dropout(linear(F.gelu(x) if gelu else x), dropout)


def given(device: str, dtype: torch.dtype = torch.float32, rows: tuple[int, ...] = (3, 5)) -> list[Any]:
    torch.manual_seed(0)
    linear = nn.Linear(WIDE, D, device=device, dtype=dtype)
    tensors = [torch.randn(*rows, width, device=device, dtype=dtype).requires_grad_() for width in (D, WIDE)]
    return [*tensors, linear]


def passes(function: Any, leaves: list[Any], dropout: float, gelu: bool, narrow: torch.dtype | None) -> Any:
    """Return the result and the gradients; x comes from a product, as it does in a layer."""
    residual, x, linear = leaves
    context = torch.autocast(x.device.type, narrow) if narrow else nullcontext()
    identity = torch.eye(WIDE, device=x.device, dtype=x.dtype)
    with context:
        torch.manual_seed(1)
        made = function(residual, x @ identity, linear, dropout, gelu=gelu)
    (made.double() * torch.linspace(-1, 1, D, device=x.device)).sum().backward()
    slopes = [leaf.grad for leaf in (residual, x, linear.weight, linear.bias)]
    for leaf in (residual, x, linear.weight, linear.bias):
        leaf.grad = None
    return made.detach(), slopes


@on_each_device
@pytest.mark.parametrize("gelu", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize(
    ("dtype", "narrow"),
    [(torch.float32, None), (torch.float64, None), (torch.float32, torch.bfloat16), (torch.float32, torch.float16)],
)
@pytest.mark.parametrize("rows", [(3, 5), (4,), (0, 5)])
def test_the_numbers_are_those_of_torch(
    device: str, gelu: bool, dropout: float, dtype: torch.dtype, narrow: torch.dtype | None, rows: tuple[int, ...]
) -> None:
    leaves = given(device, dtype, rows)
    made, slopes = passes(add_linear, leaves, dropout, gelu, narrow)
    expected, expected_slopes = passes(plain, leaves, dropout, gelu, narrow)
    assert made.dtype == expected.dtype
    assert torch.equal(made, expected)
    # In float32 the gradient is held to its rounding, under autocast to that of the narrow type.
    tolerance = 1e-6 if narrow is None else 4 * torch.finfo(narrow).eps
    for slope, other in zip(slopes, expected_slopes, strict=True):
        assert slope.dtype == other.dtype
        torch.testing.assert_close(slope, other, rtol=tolerance, atol=tolerance)


def test_one_wide_tensor_is_kept() -> None:
    kept = dict[int, int]()
    residual, x, linear = given("cpu", rows=(40, 50))
    wide = 40 * 50 * WIDE * 4

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    hidden = x * 1.0  # of its own, as of a layer's first half
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        add_linear(residual, hidden, linear, 0.0, gelu=True)
        assert sorted(kept.values())[-1] == wide
        assert sum(kept.values()) == wide + linear.weight.nbytes
        plain(residual, hidden, linear, 0.0, gelu=True)
    assert sum(kept.values()) == 2 * wide + linear.weight.nbytes  # so that the count itself is seen to work


def test_a_frozen_part_gets_no_gradient() -> None:
    residual, x, linear = given("cpu")
    linear.requires_grad_(False)
    add_linear(residual, x, linear, 0.0, gelu=True).sum().backward()
    assert linear.weight.grad is None
    assert linear.bias.grad is None
    assert residual.grad is not None
    assert x.grad is not None


def test_arguments_stay_as_they_are() -> None:
    residual, x, linear = given("cpu")
    before = [tensor.detach().clone() for tensor in (residual, x, linear.weight, linear.bias)]
    made = add_linear(residual, x, linear, 0.0, gelu=True)
    for _ in range(2):
        made.sum().backward(retain_graph=True)
    for tensor, old in zip((residual, x, linear.weight, linear.bias), before, strict=True):
        assert torch.equal(tensor, old)


def test_other_layers_are_called() -> None:
    """A layer of another class does what it likes with its weights."""

    class Twice(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    residual, x, _ = given("cpu")
    twice, bare = Twice(WIDE, D), nn.Linear(WIDE, D, bias=False)
    assert torch.equal(add_linear(residual, x, twice, 0.0), residual + twice(x))
    assert torch.equal(add_linear(residual, x, bare, 0.0, gelu=True), residual + bare(F.gelu(x)))
