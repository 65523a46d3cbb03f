"""Attention by every kernel, against the formula in float64; and every dense backbone uses the one that is chosen."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from electra_lab.model.attention import KERNELS, attend, use_kernel
from electra_lab.testing import on_each_device
from electra_lab.testing.common import law
from registry import backbones

OPTIONS: dict[str, dict[str, Any]] = {
    "bert": {},
    "transformer": {"rotary": True},
    "transformer local": {"local_heads": 1, "window": 4},
    "performer": {"local_heads": 1, "window": 4},
}


def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("bhtd,bhsd->bhts", q, k) / q.shape[-1] ** 0.5
    weights = scores.exp() * visible
    return torch.einsum("bhts,bhsd->bhtd", weights / weights.sum(-1, keepdim=True), v)


@on_each_device
@law
@given(
    seed=st.integers(0, 2**32),
    sizes=st.tuples(*[st.integers(1, 6)] * 4),
    dtype=st.sampled_from(["float64", "bfloat16"]),
)
@pytest.mark.parametrize("kernel", KERNELS)
def test_value_and_gradient_are_those_of_the_formula(
    device: str, kernel: Any, seed: int, sizes: tuple[int, ...], dtype: str
) -> None:
    source, (batch, heads, length, width) = torch.Generator().manual_seed(seed), sizes
    drawn = torch.randn(3, batch, heads, length, width, generator=source, dtype=torch.float64)
    visible = torch.rand(batch, 1, length, length, generator=source) < 0.6
    visible |= torch.eye(length, dtype=torch.bool)
    given_, wanted = drawn.to(device, getattr(torch, dtype)).requires_grad_(), drawn.to(device).requires_grad_()
    found, expected = attend(*given_, visible.to(device), 0.0, kernel), formula(*wanted, visible.to(device))
    assert found.dtype == given_.dtype
    exact = {"rtol": 1e-9, "atol": 1e-9} if dtype == "float64" else {"rtol": 0.1, "atol": 0.1}
    torch.testing.assert_close(found, expected, check_dtype=False, **exact)
    found.double().square().sum().backward()
    expected.square().sum().backward()
    if dtype == "float64":
        torch.testing.assert_close(given_.grad, wanted.grad, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kernel", KERNELS)
def test_dropout_acts_on_the_weights(kernel: Any) -> None:
    """Of a thousand equal weights a quarter is dropped, and the others grow in proportion."""
    torch.manual_seed(0)
    q = k = torch.zeros(1, 1, 1000, 4)
    found = attend(q, k, torch.eye(1000)[None, None], torch.ones(1, 1, 1, 1000, dtype=torch.bool), 0.25, kernel) * 1000
    assert abs(float((found == 0).float().mean()) - 0.25) < 0.01
    torch.testing.assert_close(found[found != 0], torch.full_like(found[found != 0], 4 / 3))


class _Kernels(TorchDispatchMode):
    fused = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.fused += "scaled_dot_product" in str(function)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", OPTIONS)
def test_backbones_use_the_kernel_that_is_chosen(name: str) -> None:
    torch.manual_seed(0)
    encoder: Any = backbones.get(name.split()[0]).component(16, 2, 2, 16, dropout=0.0, **OPTIONS[name])
    x, mask = torch.randn(2, 12, 16), torch.arange(12) < torch.tensor([[12], [7]])
    states = {}
    for kernel in (*KERNELS, "fused"):
        assert use_kernel(kernel, encoder)
        with _Kernels() as seen:
            states[kernel] = encoder(x, mask)[mask]
        calls = 4 if name == "transformer local" else 2  # of two layers; one for local heads, one for the others
        assert seen.fused == (calls if kernel == "fused" else 0), f"{seen.fused} of {calls} calls by {kernel}"
    torch.testing.assert_close(states["products"], states["fused"], rtol=1e-5, atol=1e-5)


def test_what_leaves_no_choice_is_left_alone() -> None:
    slow: Any = backbones.get("transformer").component(16, 1, 2, 16, flash=False)
    hashing: Any = backbones.get("reformer").component(16, 1, 2, 32, bucket_size=8)
    for encoder in (slow, hashing):
        assert not use_kernel("fused", encoder)
    with _Kernels() as seen:
        slow(torch.randn(1, 8, 16), torch.ones(1, 8, dtype=torch.bool))
    assert not seen.fused


def test_backbones_are_the_ones_whose_files_ask_for_it() -> None:
    """A dense backbone that calls a kernel by itself would not follow the choice."""
    files = [each.read_text(encoding="utf-8") for each in Path(backbones.get("bert").file).parent.glob("*.py")]
    assert not any("scaled_dot_product_attention" in text for text in files)
