"""What the suites share: a vocabulary, batches of every shape, statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from electra_lab.training.random import Streams
from registry import Batch, Registry, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor


on_each_device = pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.cuda,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
            ],
        ),
    ],
)
# Suites are inherited, so one property runs in several classes; that is meant.
law = settings(
    max_examples=60, deadline=None, report_multiple_bugs=False, suppress_health_check=[HealthCheck.differing_executors]
)

PAD, UNK, CLS, SEP, MASK = range(5)
SIGNIFICANCE = 1e-6  # of the statistical laws: a correct component fails one run in a million


def vocabulary(size: int, device: str = "cpu") -> Vocabulary:
    """A vocabulary of `size` tokens with BERT's special ones first; ids that are multiples of 3 continue words."""
    is_special = torch.zeros(size, dtype=torch.bool)
    is_special[[PAD, CLS, SEP, MASK]] = True
    ids = torch.arange(size)
    return Vocabulary(
        size=size,
        pad_id=PAD,
        cls_id=CLS,
        sep_id=SEP,
        mask_id=MASK,
        special_ids=(PAD, CLS, SEP, MASK),
        is_special=is_special.to(device),
        ordinary_ids=ids[~is_special].to(device),
        word_start=(~is_special & (ids % 3 != 0)).to(device),
        counts=(1000 // (ids + 1)).to(device),
    )


class Contract:
    """A component by name, as the lab would call it."""

    name: str
    options: Mapping[str, Any] = {}
    registry: Registry[Callable[..., Any]]

    def component(self) -> Callable[..., Any]:
        return partial(self.registry.get(self.name).component, **self.options)


def close(one: Tensor, two: Tensor) -> bool:
    return torch.allclose(one, two, rtol=1e-4, atol=1e-4)


@st.composite
def padded_batches(draw: st.DrawFn, size: int) -> Batch:
    """Batches as the lab makes them: real tokens first, special ones among them, then padding."""
    tokens, real = draw(batches(size))
    lengths = real.sum(1, keepdim=True)
    return as_batch(tokens, torch.arange(tokens.shape[1]) < lengths)


def as_batch(tokens: Tensor, mask: Tensor | None = None) -> Batch:
    mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
    return Batch(tokens, mask, torch.zeros_like(tokens), torch.arange(len(tokens)))


@st.composite
def batches(draw: st.DrawFn, size: int) -> tuple[Tensor, Tensor]:
    """Tokens Int[B T] and what may be masked Bool[B T]: special tokens anywhere, padding on either side, empty rows."""
    length, rows = draw(st.integers(2, 40)), draw(st.integers(1, 5))
    ids = st.lists(st.integers(0, size - 1), min_size=length, max_size=length)
    tokens = torch.tensor([draw(ids) for _ in range(rows)])
    real = torch.zeros(rows, length, dtype=torch.bool)
    for row in range(rows):
        start = draw(st.integers(0, length))
        real[row, start : draw(st.integers(start, length))] = True
    return tokens, real & ~torch.isin(tokens, torch.tensor([PAD, CLS, SEP, MASK]))


def count(mask_prob: float, maskable: int) -> int:
    """How many of `maskable` tokens are masked."""
    return math.ceil(mask_prob * maskable - 1e-9)


def chi_square_p(counts: Tensor, probabilities: Tensor) -> float:
    """p-value of observed counts; ids are pooled, most likely first, into bins of ten expected or more."""
    from scipy.stats import chisquare

    total, order = counts.sum(), probabilities.argsort(descending=True)
    expected, observed = (probabilities[order] * total).tolist(), counts[order].tolist()
    bins: list[list[float]] = [[0.0, 0.0]]
    for e, o in zip(expected, observed, strict=True):
        if bins[-1][0] >= 10:
            bins.append([0.0, 0.0])
        bins[-1][0] += e
        bins[-1][1] += o
    if len(bins) > 1 and bins[-1][0] < 10:
        e, o = bins.pop()
        bins[-1][0] += e
        bins[-1][1] += o
    if len(bins) == 1:
        return 1.0
    wanted, seen = zip(*bins, strict=True)
    scale = sum(seen) / sum(wanted)
    return float(chisquare(seen, [w * scale for w in wanted]).pvalue)


def binomial_p(number: int, trials: int, share: float) -> float:
    from scipy.stats import binomtest

    return float(binomtest(number, trials, min(max(share, 0.0), 1.0)).pvalue)


def random_numbers(step: int, rows: int, device: str, *, start: int = 0) -> Any:
    return Streams(0, step, torch.arange(start, start + rows, device=device))("law")


def token_rows(rows: int, length: int, size: int, device: str) -> Tensor:
    return torch.randint(5, size, (rows, length), generator=torch.Generator().manual_seed(length)).to(device)
