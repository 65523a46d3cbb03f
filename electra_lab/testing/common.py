"""Shared parts of the suites: a vocabulary, batches of every shape, statistics."""

from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor

from electra_lab.training.device import use_exact_kernels
from electra_lab.training.random import Streams
from registry import Batch, Entry, Registry, Vocabulary
from registry.signature import validate

_CUDA = pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
DEVICES = ["cpu", pytest.param("cuda", marks=_CUDA)]
use_exact_kernels()  # as where the lab trains
on_each_device = pytest.mark.parametrize("device", DEVICES)
# Suites are inherited, so one property runs in several classes, on purpose.
law = settings(
    max_examples=60, deadline=None, report_multiple_bugs=False, suppress_health_check=[HealthCheck.differing_executors]
)

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL = (PAD, CLS, SEP, MASK)
SIGNIFICANCE = 1e-6  # of statistical laws: a correct component fails in one run of a million


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
    """A component by name, with options, called as the lab does. Laws with an argument `device` run on each."""

    name: str
    options: Mapping[str, Any] = {}
    registry: Registry[Any]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        marks = metafunc.definition.iter_markers("parametrize")
        if "device" in metafunc.fixturenames and all(mark.args[0] != "device" for mark in marks):
            metafunc.parametrize("device", DEVICES)

    @property
    def entry(self) -> Entry[Any]:
        return self.registry.get(self.name)

    @property
    def kind(self) -> Any:
        """The registered function or class."""
        return self.entry.component

    def component(self) -> Any:
        return partial(self.kind, **self.options)

    def all_options(self) -> dict[str, Any]:
        """Return the options with their defaults."""
        fields = self.entry.schema.model_fields.items()
        return {name: field.default for name, field in fields if not field.is_required()} | dict(self.options)

    def declared(self, name: str) -> Any:
        """Return a declaration of the component, evaluated for these options if it depends on them."""
        declaration = self.entry.declared[name]
        return (
            declaration(**self.all_options())
            if callable(declaration) and not isinstance(declaration, type)
            else declaration
        )


class ReaderContract(Contract):
    """Laws of corpora and datasets: reading again gives the same content and the same fingerprint.

    Override `options_in` if the component reads files that the test must write first.
    """

    def options_in(self, folder: Path) -> Mapping[str, Any]:
        """Return the options, as YAML has them; the files they name may be written to an empty folder."""
        return self.options

    def opened(self, options: Mapping[str, Any]) -> Any:
        return self.kind(**dict(validate(self.entry.schema, options)))

    def content(self, reader: Any) -> list[Any]:
        """Read everything."""
        raise NotImplementedError

    def assert_same_content(self, folder: Path) -> None:
        options = self.options_in(folder)
        reader = self.opened(options)
        once = self.content(reader)
        assert self.content(reader) == once, "the second reading differs from the first"
        assert self.content(self.opened(options)) == once, "another reader with the same options has other content"

    def test_the_fingerprint_is_the_same_each_time(self, tmp_path: Path) -> None:
        options = self.options_in(tmp_path)
        reader = self.opened(options)
        before = reader.fingerprint()
        assert isinstance(before, str)
        assert before
        self.content(reader)
        assert reader.fingerprint() == before, "reading changed the fingerprint"
        assert self.opened(options).fingerprint() == before, "another reader with the same options has another one"


def close(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, rtol=1e-4, atol=1e-4)


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
    """Draw tokens Int[B T] and maskable Bool[B T]: special tokens anywhere, padding on either side, empty rows.

    Tokens come from a seed: drawn one by one, they would take longer than the laws.
    """
    length, rows, seed = draw(st.integers(2, 40)), draw(st.integers(1, 8)), draw(st.integers(0, 2**32))
    tokens = torch.randint(size, (rows, length), generator=torch.Generator().manual_seed(seed))
    real = torch.zeros(rows, length, dtype=torch.bool)
    for row in range(rows):
        start = draw(st.integers(0, length))
        real[row, start : draw(st.integers(start, length))] = True
    return tokens, real & ~torch.isin(tokens, torch.tensor(SPECIAL))


def count(mask_prob: float, maskable: int) -> int:
    """Return the number of masked tokens, in exact arithmetic: an oracle for registry.count."""
    return ceil(Fraction(mask_prob) * maskable - Fraction(1e-9))  # the double itself, or a mask_prob of 1e-9 differs


def chi_square_p(counts: Tensor, probabilities: Tensor) -> float:
    """Return the p-value of observed counts; ids are pooled, most likely first, into bins of ten expected or more."""
    from scipy.stats import chisquare

    total, order = counts.sum(), probabilities.argsort(descending=True)
    expected, observed = (probabilities[order] * total).tolist(), counts[order].tolist()
    bins: list[list[float]] = [[0.0, 0.0]]
    for expected_here, observed_here in zip(expected, observed, strict=True):
        if bins[-1][0] >= 10:
            bins.append([0.0, 0.0])
        bins[-1] = [bins[-1][0] + expected_here, bins[-1][1] + observed_here]
    if len(bins) > 1 and bins[-1][0] < 10:
        expected_here, observed_here = bins.pop()
        bins[-1] = [bins[-1][0] + expected_here, bins[-1][1] + observed_here]
    if len(bins) == 1:
        return 1.0
    expected_counts, observed_counts = zip(*bins, strict=True)
    scale = sum(observed_counts) / sum(expected_counts)
    return float(chisquare(observed_counts, [w * scale for w in expected_counts]).pvalue)


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
    return Streams.of(0, step, torch.arange(start, start + rows, device=device))("law")


def token_rows(rows: int, length: int, size: int, device: str) -> Tensor:
    return torch.randint(5, size, (rows, length), generator=torch.Generator().manual_seed(length)).to(device)


def worst(first: Tensor, second: Tensor) -> str:
    """Describe where two tensors differ most, for messages of assertions."""
    difference = (first.double() - second.double()).abs()
    place = tuple(int(i) for i in torch.unravel_index(difference.argmax(), difference.shape)) if first.dim() else ()
    here, there = float(first[place]), float(second[place])
    return f"they differ by {float(difference.max()):.3g} at {list(place)}: {here:.6g}, {there:.6g}"
