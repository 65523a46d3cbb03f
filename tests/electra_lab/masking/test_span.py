"""Spans: how the count is kept, where they lie, and how long they are."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from electra_lab.masking.span import _lengths
from electra_lab.testing import SIGNIFICANCE, batches, count, vocabulary
from electra_lab.training.random import Streams
from tests.electra_lab.masking.strategies import masked, words_of


@settings(max_examples=150, deadline=None)
@given(
    batch=batches(24),
    mask_prob=st.sampled_from([0.15, 0.3, 1.0]),
    kind=st.sampled_from(["geometric", "uniform"]),
    longest=st.integers(1, 5),
    step=st.integers(0, 1000),
)
def test_spans_fill_the_count_and_tear_one_word_at_most(
    batch: tuple[torch.Tensor, torch.Tensor], mask_prob: float, kind: str, longest: int, step: int
) -> None:
    words = vocabulary(24)
    tokens, maskable = batch
    result = masked("span", tokens, maskable, words, step, mask_prob=mask_prob, length=kind, longest=longest)
    for row in range(len(tokens)):
        chosen = set(result.positions[row][result.valid[row]].tolist())
        assert len(chosen) == count(mask_prob, int(maskable[row].sum()))
        torn = [
            w
            for w in words_of(tokens[row].tolist(), maskable[row].tolist(), words)
            if 0 < len(set(w) & chosen) < len(w)
        ]
        assert len(torn) <= 1, "only the last span may be cut"
        assert all(set(w[: len(set(w) & chosen)]) <= chosen for w in torn), "a span is cut at its end"


def test_spans_cluster_where_single_tokens_do_not() -> None:
    """Neighbours of masked tokens are masked more often than chance has it."""
    tokens = torch.full((300, 100), 7)  # 7 begins a word, so each token is one
    maskable = torch.ones_like(tokens, dtype=torch.bool)

    def neighbours(name: str, **options: object) -> float:
        result = masked(name, tokens, maskable, vocabulary(24), **options)
        chosen = torch.zeros_like(maskable).scatter(1, result.positions, result.valid)
        return float((chosen[:, 1:] & chosen[:, :-1]).sum() / chosen[:, :-1].sum())

    assert neighbours("replace_prob") == pytest.approx(0.15, abs=0.03)
    assert neighbours("span") > 0.5
    assert neighbours("span", length="uniform", longest=1) == pytest.approx(0.15, abs=0.03)
    assert neighbours("span", stop_prob=1.0) == pytest.approx(0.15, abs=0.03)
    assert neighbours("span", length="uniform", stop_prob=1.0) > 0.5, "uniform lengths know no stop_prob"


def test_spans_end_where_something_may_not_be_masked() -> None:
    """One that begins before a special token does not go on behind it: the next one begins anywhere."""
    tokens = torch.full((4000, 21), 7)
    maskable = torch.ones_like(tokens, dtype=torch.bool)
    maskable[:, 10] = False
    # 3 of 20, in one span where there is room for it.
    result = masked("span", tokens, maskable, vocabulary(24), longest=1000, stop_prob=0.001)
    chosen = torch.zeros_like(maskable).scatter(1, result.positions, result.valid)
    assert chosen[:, 7][chosen[:, 6] & ~chosen[:, 5]].float().mean() > 0.8
    assert chosen[:, 11][chosen[:, 9] & ~chosen[:, 8]].float().mean() < 0.2


def test_lengths_follow_their_distributions() -> None:
    """SpanBERT's clipped geometric distribution (mean 3.8 words), and the uniform one."""
    uniform = Streams(0, 0, torch.arange(200))("law").uniform(200, 200)
    drawn = _lengths(uniform, "geometric", 10, 0.2).flatten().tolist()
    shares = torch.tensor([0.2 * 0.8**n for n in range(10)], dtype=torch.float64)
    shares /= shares.sum()
    assert sum(drawn) / len(drawn) == pytest.approx(3.8, abs=0.05)
    counts = Counter(drawn)
    observed = [counts[n] for n in range(1, 11)]
    assert sum(observed) == len(drawn)
    assert stats.chisquare(observed, (shares * len(drawn)).tolist()).pvalue > SIGNIFICANCE
    flat = Counter(_lengths(uniform, "uniform", 4, 0.2).flatten().tolist())
    assert set(flat) == {1, 2, 3, 4}
    assert stats.chisquare([flat[n] for n in range(1, 5)]).pvalue > SIGNIFICANCE
