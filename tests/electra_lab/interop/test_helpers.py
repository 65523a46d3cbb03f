"""The helper functions that scripts import from electra-pytorch: their laws, and equality where theirs is correct."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from electra_lab.interop.electra_pytorch import get_mask_subset_with_prob, gumbel_sample
from electra_lab.testing import SIGNIFICANCE, chi_square_p, count, on_each_device


@on_each_device
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_draws_follow_the_softmax(dtype: torch.dtype, temperature: float, device: str) -> None:
    torch.manual_seed(0)
    logits = torch.linspace(-3, 3, 20).to(dtype).to(device)
    drawn = gumbel_sample(logits.expand(20_000, -1), temperature)
    counts = torch.bincount(drawn.cpu(), minlength=20).double()
    assert chi_square_p(counts, (logits.cpu().double() / temperature).softmax(-1)) > SIGNIFICANCE


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_temperature_zero_takes_the_most_likely(dtype: torch.dtype) -> None:
    logits = torch.randn(3, 5, 9, generator=torch.Generator().manual_seed(0)).to(dtype)
    for temperature in (0.0, 0):
        assert torch.equal(gumbel_sample(logits, temperature), logits.argmax(-1))


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7), (2, 0, 7)])
def test_any_number_of_leading_axes(shape: tuple[int, ...]) -> None:
    assert gumbel_sample(torch.zeros(shape)).shape == shape[:-1]


def test_what_is_impossible_is_never_drawn_and_the_logits_stay() -> None:
    logits = torch.full((5000, 6), -math.inf)
    logits[:, 2:4] = torch.tensor([0.0, -12.0])
    before = logits.clone()
    assert set(gumbel_sample(logits).tolist()) <= {2, 3}
    assert torch.equal(logits, before)


CALLS: list[Callable[[], Tensor]] = [
    lambda: gumbel_sample(torch.zeros(100, 50)),
    lambda: get_mask_subset_with_prob(torch.ones(8, 30, dtype=torch.bool), 0.3),
]


@pytest.mark.parametrize("call", CALLS)
def test_choices_follow_the_global_generator(call: Callable[[], Tensor]) -> None:
    """Scripts call the helpers directly, so their seed must matter; and calls differ."""
    made = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        made.append(torch.stack([call() for _ in range(2)]))
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0][0], made[0][1])
    assert not torch.equal(made[0], made[2])


@settings(max_examples=100, deadline=None)
@given(data=st.data(), prob=st.one_of(st.sampled_from([0.0, 1e-9, 0.15, 0.5, 1.0]), st.floats(0, 1)))
def test_exactly_the_share_of_each_row(data: st.DataObject, prob: float) -> None:
    """ceil(prob * m) of the m True positions, and no other; also in rows without any."""
    length = data.draw(st.integers(1, 60))
    rows = st.lists(st.booleans(), min_size=length, max_size=length)
    mask = torch.tensor(data.draw(st.lists(rows, min_size=1, max_size=4)))
    torch.manual_seed(0)
    chosen = get_mask_subset_with_prob(mask, prob)
    assert not (chosen & ~mask).any()
    assert chosen.sum(1).tolist() == [count(prob, int(m)) for m in mask.sum(1)]


def test_every_subset_is_equally_likely() -> None:
    """Two of five positions, wherever the False ones are."""
    torch.manual_seed(0)
    row = torch.tensor([True, False, True, True, False, False, True, True])
    chosen = get_mask_subset_with_prob(row.expand(20_000, -1), 0.4)
    pairs = list(itertools.combinations(row.nonzero().flatten().tolist(), 2))
    found = [tuple(row.nonzero().flatten().tolist()) for row in chosen.unique(dim=0)]
    assert sorted(found) == pairs
    counts = chosen.unique(dim=0, return_counts=True)[1].double()
    assert chi_square_p(counts, torch.full((10,), 0.1).double()) > SIGNIFICANCE
