"""Samplers that become one another at the ends of their options."""

from __future__ import annotations

import pytest
import torch

from electra_lab.training.random import Streams
from registry import samplers


def drawn(name: str, logits: torch.Tensor, **options: float) -> torch.Tensor:
    random = Streams(0, 0, torch.arange(len(logits)))("sampling")
    return samplers.get(name).component(logits, random, **options)


LOGITS = torch.randn(400, 60, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("temperature", {"temperature": 1e-6}),
        ("gumbel", {"temperature": 1e-6}),
        ("top_k", {"k": 1}),
        ("top_k", {"k": 7, "temperature": 1e-6}),
        ("nucleus", {"p": 1e-6}),
        ("nucleus", {"p": 1.0, "temperature": 1e-6}),
    ],
)
def test_argmax_is_the_limit(name: str, options: dict[str, float]) -> None:
    assert torch.equal(drawn(name, LOGITS, **options), LOGITS.argmax(-1))


@pytest.mark.parametrize(
    ("name", "options"), [("temperature", {}), ("gumbel", {}), ("top_k", {"k": 7}), ("nucleus", {"p": 0.8})]
)
def test_a_temperature_divides_the_logits(name: str, options: dict[str, float]) -> None:
    """Before anything else is done to them: a nucleus, too, is one of the tempered probabilities."""
    assert torch.equal(drawn(name, LOGITS, temperature=2.0, **options), drawn(name, LOGITS / 2, **options))


def test_the_most_likely_token_is_told_from_the_next() -> None:
    assert drawn("argmax", torch.tensor([[1.0, 1.001], [1.001, 1.0]])).tolist() == [1, 0]


def test_a_k_above_the_vocabulary_takes_all_of_it() -> None:
    flat = torch.zeros(3000, 10)
    assert set(drawn("top_k", flat, k=99).tolist()) == set(range(10))


def test_special_tokens_do_not_fill_the_k() -> None:
    """Where fewer than k tokens are allowed, the forbidden ones among the k are never drawn."""
    logits = torch.full((500, 10), float("-inf"))
    logits[:, 3:5] = 0.0
    assert set(drawn("top_k", logits, k=8).tolist()) == {3, 4}
