"""Sliding-window attention against torch's with a banded mask; options that several backbones have."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from electra_lab.backbones._windows import local_attention, sliding_attention, sliding_mask
from electra_lab.model.layers import KERNELS
from electra_lab.testing import on_each_device
from electra_lab.testing.common import law
from registry import backbones


def drawn(seed: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
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
def test_it_is_softmax_attention_over_a_window_and_its_neighbours(device, kernel, seed, window, windows, share) -> None:
    length = window * windows
    visible = torch.rand(2, length, generator=torch.Generator().manual_seed(seed)) < share
    block = torch.arange(length) // window
    band = (block.unsqueeze(1) - block).abs() <= 1
    allowed = band & visible.unsqueeze(1)  # [2 T T]
    seeing = allowed.any(-1)[:, None, :, None]  # the other positions have an arbitrary finite result
    given_ = [t.to(device).requires_grad_() for t in drawn(seed, length)]
    wanted = [t.detach().clone().requires_grad_() for t in given_]
    allowed = (allowed | ~allowed.any(-1, keepdim=True)).unsqueeze(1)
    expected = F.scaled_dot_product_attention(*wanted, allowed.to(device))
    found = local_attention(*given_, visible.to(device), window, 0.0, kernel)
    assert found.isfinite().all()
    (found * seeing.to(device)).square().sum().backward()
    (expected * seeing.to(device)).square().sum().backward()
    torch.testing.assert_close(found * seeing.to(device), expected * seeing.to(device), rtol=1e-9, atol=1e-9)
    for tensor, reference in zip(given_, wanted, strict=True):
        torch.testing.assert_close(tensor.grad, reference.grad, rtol=1e-9, atol=1e-9)


@on_each_device
@law
@given(
    seed=st.integers(0, 2**32), reach=st.integers(1, 8), length=st.integers(1, 40), share=st.sampled_from([0.2, 1.0])
)
@pytest.mark.parametrize("separate", [False, True])
def test_sliding_attention_sees_what_is_near(device: str, separate, seed: int, reach: int, length: int, share) -> None:
    """Keys at most `reach` away are visible, within the same document if there are documents; for any length."""
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


def test_dropout_acts_on_the_weights() -> None:
    query, key, _ = drawn(0, 24)
    value, visible = torch.ones_like(query), torch.ones(2, 24, dtype=torch.bool)
    torch.testing.assert_close(local_attention(query, key, value, visible, 4, 0.0), value)
    assert local_attention(query, key, value, visible, 4, 0.5).std() > 0.1


DIM, LENGTH = 32, 24
PLAIN: dict[str, dict[str, Any]] = {  # in which every position sees all others
    "performer": {"features": 8},
    "reformer": {"bucket_size": LENGTH // 2, "hashes": 1},
    "transformer": {},
}
LOCAL = {"performer": {"features": 8, "window": 4}, "transformer": {"window": 4}}
WINDOWS_OF_FOUR = {**LOCAL, "reformer": {"bucket_size": 2, "hashes": 1}}


def built(name: str, dim: int = DIM, **options: Any) -> Any:
    torch.manual_seed(0)
    component: Any = backbones.get(name).component
    return component(dim, 1, 2, 64, **{"dropout": 0.0, **options}).eval().requires_grad_(False)


def states() -> Tensor:
    return torch.randn(2, LENGTH, DIM, generator=torch.Generator().manual_seed(1))


MASK = torch.ones(2, LENGTH, dtype=torch.bool)


@pytest.mark.parametrize(("rotary", "positions"), [(True, "own"), (False, "lab")])
@pytest.mark.parametrize("name", PLAIN)
def test_without_rotary_positions_the_lab_gives_them(name: str, rotary: bool, positions: str) -> None:
    """Without them the encoder ignores the order of its input; with them it does not."""
    model, order = built(name, rotary=rotary, **PLAIN[name]), torch.randperm(LENGTH)
    assert model.positions == positions
    same = torch.allclose(model(states(), MASK)[:, order], model(states()[:, order], MASK), atol=1e-5)
    assert same == (positions == "lab")


@pytest.mark.parametrize("name", PLAIN)
def test_an_odd_head_width_cannot_turn_and_one_head_at_least_sees_the_whole_row(name: str) -> None:
    with pytest.raises(ValueError, match=r"dim 6 / heads 2 is 3\."):
        built(name, dim=6, rotary=True)
    assert built(name, dim=6, rotary=False).positions == "lab"
    with pytest.raises(ValueError, match="local_heads 2 must be below heads 2"):
        built(name, local_heads=2)


@pytest.mark.parametrize("name", LOCAL)
def test_local_heads_need_whole_windows(name: str) -> None:
    assert built(name, local_heads=1, window=4).length_multiple == 4
    assert built(name, window=4).length_multiple == 1


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize(("changed", "seeing"), [(0, range(0, 8)), (13, range(8, 20)), (23, range(16, 24))])
@pytest.mark.parametrize("name", WINDOWS_OF_FOUR)
def test_a_local_head_sees_its_window_and_its_neighbours(name: str, changed: int, seeing: range, rotary: bool) -> None:
    """In the encoder, with a layer that uses only the local head's output; local heads come first."""
    model, x = built(name, rotary=rotary, local_heads=1, **WINDOWS_OF_FOUR[name]), states()
    for path, weight in model.named_parameters():
        if path.endswith(("to_out.weight", "attended.weight")):
            weight[:, DIM // 2 :] = 0.0
    other = x.clone()
    other[:, changed] += torch.randn(DIM, generator=torch.Generator().manual_seed(2))
    differs = (model(x, MASK) != model(other, MASK)).any(-1)
    assert all(row.nonzero().flatten().tolist() == list(seeing) for row in differs)
