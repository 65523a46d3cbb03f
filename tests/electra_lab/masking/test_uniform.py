"""What all strategies share: the count, the tokens that are put in, and no opinion on where special ids stand."""

from __future__ import annotations

import pytest
import torch

from electra_lab.masking._uniform import slots_of
from electra_lab.testing import SIGNIFICANCE, chi_square_p
from electra_lab.training.random import Streams
from registry import Vocabulary, count, masking_strategies

STRATEGIES = pytest.mark.parametrize("name", ["replace_prob", "random_token", "whole_word", "span"])


def test_the_count_is_that_of_exact_arithmetic() -> None:
    """For every percentage of every number of tokens: 16 of 100 at 0.15, or 8 of 100 at 0.07, is rounding."""
    maskable = torch.arange(512) < torch.arange(513).unsqueeze(1)
    for percent in range(1, 101):
        exact = [-(-percent * number // 100) for number in range(513)]
        assert count(percent / 100, maskable.sum(-1)).tolist() == exact
        assert [slots_of(percent / 100, number) for number in range(513)] == exact


def scattered(size: int = 12) -> Vocabulary:
    """A vocabulary whose special tokens stand anywhere, as in those of other tokenizers."""
    pad, cls, sep, mask = 9, 0, 7, 2
    is_special = torch.zeros(size, dtype=torch.bool)
    is_special[[pad, cls, sep, mask]] = True
    ordinary = (~is_special).nonzero().squeeze(1)
    return Vocabulary(
        size, pad, cls, sep, mask, (cls, mask, sep, pad), is_special, ordinary, ~is_special, torch.ones(size).long()
    )


@STRATEGIES
def test_random_tokens_are_ordinary_ones_each_as_often(name: str) -> None:
    """Whatever the position and its neighbours get; the special tokens stand where they please."""
    words, tokens = scattered(), torch.full((400, 100), 5)
    rng = Streams(0, 0, torch.arange(400))("masking")
    masked = masking_strategies.get(name).component(
        tokens, torch.ones_like(tokens, dtype=torch.bool), words, rng, mask_prob=0.3, replace_prob=0.2, random_prob=0.8
    )
    seen = masked.inputs.gather(1, masked.positions)[masked.valid]
    found = torch.bincount(seen[seen != words.mask_id], minlength=words.size).double()
    assert chi_square_p(found, (~words.is_special).double() / len(words.ordinary_ids)) > SIGNIFICANCE
    assert not found[words.is_special].any()
    assert (seen == words.mask_id).double().mean() == pytest.approx(0.2, abs=0.03)


@STRATEGIES
def test_shares_that_nobody_set_are_those_of_the_papers(name: str) -> None:
    """Devlin et al. 2019 for `random_token`, google-research/electra for all others."""
    options = masking_strategies.get(name).component.__kwdefaults__
    assert options["mask_prob"] == 0.15
    expected = (0.8, 0.1) if name == "random_token" else (0.85, 0.0)
    assert (options["replace_prob"], options["random_prob"]) == expected


@pytest.mark.parametrize("name", ["whole_word", "span"])
def test_words_of_one_token_are_chosen_alike(name: str) -> None:
    """Where a word stands does not matter to `whole_word`, nor to spans of one word."""
    tokens = torch.full((4000, 20), 5)
    rng = Streams(0, 0, torch.arange(4000))("masking")
    options = {"longest": 1} if name == "span" else {}
    maskable = torch.ones_like(tokens, dtype=torch.bool)
    masked = masking_strategies.get(name).component(tokens, maskable, scattered(), rng, mask_prob=0.2, **options)
    found = torch.bincount(masked.positions[masked.valid], minlength=20).double()
    assert chi_square_p(found, torch.full((20,), 0.05).double()) > SIGNIFICANCE
