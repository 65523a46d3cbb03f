"""Attention among neighbours against torch's attention with a mask of the same band."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from electra_lab.backbones._windows import local_attention, sliding_attention, sliding_mask
from electra_lab.model.attention import KERNELS, Kernel
from electra_lab.testing import on_each_device
from electra_lab.testing.common import law


def drawn(seed: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of two rows."""
    query, key, value = torch.randn(3, 2, 2, length, 8, generator=torch.Generator().manual_seed(seed)).double()
    return query, key, value


@on_each_device
@law
@given(
    seed=st.integers(0, 2**32),
    window=st.integers(1, 8),
    windows=st.integers(1, 5),
    share=st.sampled_from([0.0, 0.2, 0.7, 1.0]),
)
@pytest.mark.parametrize("kernel", KERNELS)
def test_it_is_softmax_attention_over_a_window_and_those_beside(
    device: str, kernel: Kernel, seed: int, window: int, windows: int, share: float
) -> None:
    """As far as keys are visible; values and gradients."""
    length = window * windows
    visible = torch.rand(2, length, generator=torch.Generator().manual_seed(seed)) < share
    block = torch.arange(length) // window
    band = (block.unsqueeze(1) - block).abs() <= 1
    allowed = band & visible.unsqueeze(1)  # [2 T T]
    seeing = allowed.any(-1)[:, None, :, None]  # the others are given an arbitrary finite result
    given_, wanted = ([t.to(device).requires_grad_() for t in drawn(seed, length)] for _ in range(2))
    allowed = (allowed | ~allowed.any(-1, keepdim=True)).unsqueeze(1)
    expected = F.scaled_dot_product_attention(*wanted, allowed.to(device))
    found = local_attention(*given_, visible.to(device), window, 0.0, kernel)
    assert found.isfinite().all()
    (found * seeing.to(device)).square().sum().backward()  # type: ignore[no-untyped-call]
    (expected * seeing.to(device)).square().sum().backward()
    torch.testing.assert_close(found * seeing.to(device), expected * seeing.to(device), rtol=1e-9, atol=1e-9)
    for one, other in zip(given_, wanted, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-9)


@on_each_device
@law
@given(
    seed=st.integers(0, 2**32), reach=st.integers(1, 8), length=st.integers(1, 40), share=st.sampled_from([0.2, 1.0])
)
@pytest.mark.parametrize("separate", [False, True])
def test_sliding_attention_sees_what_is_near(
    device: str, separate: bool, seed: int, reach: int, length: int, share: float
) -> None:
    """Visible keys at most `reach` away, of the same document if there are documents; any length."""
    source = torch.Generator().manual_seed(seed)
    visible = torch.rand(2, length, generator=source) < share
    documents = torch.randint(2, (2, length), generator=source).cumsum(-1) if separate else None
    places = torch.arange(length)
    allowed = ((places[:, None] - places).abs() <= reach) & visible.unsqueeze(1)  # [2 T T]
    if documents is not None:
        allowed = allowed & (documents[:, :, None] == documents[:, None, :])
    seeing = allowed.any(-1)[:, None, :, None]
    q, k, v = drawn(seed, length)
    expected = F.scaled_dot_product_attention(q, k, v, (allowed | ~allowed.any(-1, keepdim=True)).unsqueeze(1))
    moved = None if documents is None else documents.to(device)
    seen = sliding_mask(visible.to(device), reach, moved)
    found = sliding_attention(q.to(device), k.to(device), v.to(device), seen, reach, 0.0).cpu()
    assert found.isfinite().all()
    torch.testing.assert_close(found * seeing, expected * seeing, rtol=1e-9, atol=1e-9)


def test_what_hidden_keys_hold_does_not_matter() -> None:
    query, key, value = drawn(0, 24)
    visible = torch.arange(24) < torch.tensor([[13], [24]])
    noise = torch.where(visible[:, None, :, None], 0.0, 100.0)
    one, other = (
        local_attention(query, k, v, visible, 4, 0.0) for k, v in ((key, value), (key + noise, value + noise))
    )
    seeing = visible[:, None, :, None]
    assert torch.equal(one * seeing, other * seeing)


def test_dropout_acts_on_the_weights() -> None:
    query, key, _ = drawn(0, 24)
    value, visible = torch.ones_like(query), torch.ones(2, 24, dtype=torch.bool)
    torch.testing.assert_close(local_attention(query, key, value, visible, 4, 0.0), value)
    assert local_attention(query, key, value, visible, 4, 0.5).std() > 0.1
