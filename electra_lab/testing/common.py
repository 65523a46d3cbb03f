"""Parts that the suites share: a vocabulary, batches of every shape, statistics."""

from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from math import ceil
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor

from electra_lab.training.random import Streams
from registry import Batch, Registry, Vocabulary

_CUDA = pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=_CUDA)])
# Suites are inherited, so one property runs in several classes, on purpose.
law = settings(
    max_examples=60, deadline=None, report_multiple_bugs=False, suppress_health_check=[HealthCheck.differing_executors]
)

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL = (PAD, CLS, SEP, MASK)
SIGNIFICANCE = 1e-6  # of the statistical laws: a correct component fails one run in a million


def vocabulary(size: int, device: str = "cpu") -> Vocabulary:
    """Return a vocabulary of `size` tokens, BERT's special ones first; ids that are multiples of 3 continue words.

    Multiples of 5 end sentences.
    """
    is_special = torch.zeros(size, dtype=torch.bool)
    is_special[list(SPECIAL)] = True
    ids = torch.arange(size)
    return Vocabulary(
        size=size,
        pad_id=PAD,
        cls_id=CLS,
        sep_id=SEP,
        mask_id=MASK,
        special_ids=SPECIAL,
        is_special=is_special.to(device),
        ordinary_ids=ids[~is_special].to(device),
        word_start=(~is_special & (ids % 3 != 0)).to(device),
        counts=(1000 // (ids + 1)).to(device),
        sentence_end=(~is_special & (ids % 5 == 0)).to(device),
    )


class Contract:
    """A component by name, with options, as the lab would call it."""

    name: str
    options: Mapping[str, Any] = {}
    registry: Registry[Any]

    @property
    def kind(self) -> Any:
        """Return the registered function or class."""
        return self.registry.get(self.name).component

    def component(self) -> Any:
        return partial(self.kind, **self.options)


def close(one: Tensor, two: Tensor) -> bool:
    return torch.allclose(one, two, rtol=1e-4, atol=1e-4)


@st.composite
def padded_batches(draw: st.DrawFn, size: int) -> Batch:
    """Draw batches as the lab makes them: real tokens first, special ones among them, then padding."""
    tokens, real = draw(batches(size))
    return as_batch(tokens, torch.arange(tokens.shape[1]) < real.sum(1, keepdim=True))


def as_batch(tokens: Tensor, mask: Tensor | None = None) -> Batch:
    mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
    return Batch(tokens, mask, torch.zeros_like(tokens), torch.arange(len(tokens), device=tokens.device))


@st.composite
def batches(draw: st.DrawFn, size: int) -> tuple[Tensor, Tensor]:
    """Draw tokens Int[B T] and maskable Bool[B T]: special tokens anywhere, padding on either side, empty rows."""
    length, rows = draw(st.integers(2, 40)), draw(st.integers(1, 5))
    ids = st.lists(st.integers(0, size - 1), min_size=length, max_size=length)
    tokens = torch.tensor([draw(ids) for _ in range(rows)])
    real = torch.zeros(rows, length, dtype=torch.bool)
    for row in range(rows):
        start = draw(st.integers(0, length))
        real[row, start : draw(st.integers(start, length))] = True
    return tokens, real & ~torch.isin(tokens, torch.tensor(SPECIAL))


def count(mask_prob: float, maskable: int) -> int:
    """Return how many of `maskable` tokens are masked, in exact arithmetic: an oracle for registry.count."""
    return ceil(Fraction(mask_prob) * maskable - Fraction(1e-9))  # the double itself, or a mask_prob of 1e-9 differs


def chi_square_p(counts: Tensor, probabilities: Tensor) -> float:
    """Return the p-value of observed counts; ids are pooled, most likely first, into bins of ten expected or more."""
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


def assert_follows(counts: Tensor, expected: Tensor, where: str) -> None:
    """Assert that counts of draws follow a distribution."""
    impossible = int(counts[expected == 0].sum())
    assert not impossible, f"{where}: tokens without probability were drawn {impossible} times"
    p = chi_square_p(counts, expected)
    off = (counts / counts.sum() - expected).abs().argmax()
    share = f"token {int(off)} has the share {float(counts[off] / counts.sum()):.4f}, not {float(expected[off]):.4f}"
    assert p > SIGNIFICANCE, f"{where}: p = {p:.2g}; {share}"


def binomial_p(number: int, trials: int, share: float) -> float:
    from scipy.stats import binomtest

    return float(binomtest(number, trials, min(max(share, 0.0), 1.0)).pvalue)


def random_numbers(step: int, rows: int, device: str, *, start: int = 0) -> Any:
    return Streams(0, step, torch.arange(start, start + rows, device=device))("law")


def token_rows(rows: int, length: int, size: int, device: str) -> Tensor:
    return torch.randint(5, size, (rows, length), generator=torch.Generator().manual_seed(length)).to(device)


def worst(one: Tensor, two: Tensor) -> str:
    """Describe where two tensors differ most, for messages of assertions."""
    difference = (one.double() - two.double()).abs()
    place = tuple(int(i) for i in torch.unravel_index(difference.argmax(), difference.shape)) if one.dim() else ()
    here, there = float(one[place]), float(two[place])
    return f"they differ by {float(difference.max()):.3g} at {list(place)}: {here:.6g}, {there:.6g}"
