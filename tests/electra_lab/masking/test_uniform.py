"""Common properties of all strategies: the count, the inserted tokens, and independence of the special ids."""

import pytest
import torch

from electra_lab.masking.replace_prob import slots_of
from electra_lab.testing import MASK, SIGNIFICANCE, chi_square_p
from registry import Masked, Vocabulary, count, masking_strategies
from tests.electra_lab.masking.strategies import Numbers, masked, small

STRATEGIES = pytest.mark.parametrize("name", ["replace_prob", "random_token", "whole_word", "span"])


def test_the_count_is_that_of_exact_arithmetic() -> None:
    """For every percentage of every number of tokens; rounding errors would give 16 of 100 at 0.15, or 8 at 0.07."""
    maskable = torch.arange(512) < torch.arange(513).unsqueeze(1)
    for percent in range(1, 101):
        exact = [-(-percent * number // 100) for number in range(513)]
        assert count(percent / 100, maskable.sum(-1)).tolist() == exact
        assert [slots_of(percent / 100, number) for number in range(513)] == exact


@pytest.mark.parametrize(
    ("name", "options", "kinds", "drawn", "inputs"),
    [  # [MASK] below the first share, a random token below the sum of both, the token itself above
        ("replace_prob", {}, [0.84, 0.86, 0.0, 0.99], [0.5] * 4, [MASK, 6, 7, MASK]),
        ("random_token", {}, [0.79, 0.81, 0.89, 0.91], [0.0, 0.0, 0.99, 0.5], [MASK, 6, 1, 11]),
        ("random_token", {"replace_prob": 0.3, "random_prob": 0.2}, [0.29, 0.31, 0.49, 0.51], [0.0] * 4,
         [MASK, 6, 1, 1]),
    ],
)  # fmt: skip
def test_what_becomes_of_each_position(name: str, options, kinds, drawn: list[float], inputs: list[int]) -> None:
    """With given numbers. Positions are in descending order of their numbers."""
    tokens, numbers = torch.tensor([[5, 6, 7, 8]]), Numbers([0.4, 0.1, 0.3, 0.2], kinds, drawn)
    rule = masking_strategies.get(name).component
    found: Masked = rule(tokens, tokens > 0, small(), numbers, mask_prob=1.0, **options)
    assert found.positions.tolist() == [[0, 2, 3, 1]]
    assert found.inputs.tolist() == [inputs]
    assert found.valid.all()


def scattered() -> Vocabulary:
    """A vocabulary of 12 with scattered special tokens, as in other tokenizers."""
    special = torch.isin(torch.arange(12), torch.tensor([9, 0, 7, 2]))
    ordinary = (~special).nonzero().squeeze(1)
    return Vocabulary(12, 9, 0, 7, 2, (0, 2, 7, 9), special, ordinary, ~special, torch.ones(12).long())


@STRATEGIES
def test_random_tokens_are_ordinary_ones_each_as_often(name: str) -> None:
    """At any position, for any neighbours and ids of special tokens."""
    words, tokens = scattered(), torch.full((400, 100), 5)
    result = masked(name, tokens, tokens > 0, words, mask_prob=0.3, replace_prob=0.2, random_prob=0.8)
    seen = result.inputs.gather(1, result.positions)[result.valid]
    found = torch.bincount(seen[seen != words.mask_id], minlength=words.size).double()
    assert chi_square_p(found, (~words.is_special).double() / len(words.ordinary_ids)) > SIGNIFICANCE
    assert not found[words.is_special].any()
    assert (seen == words.mask_id).double().mean() == pytest.approx(0.2, abs=0.03)


@STRATEGIES
def test_shares_that_nobody_set_are_those_of_the_papers(name: str) -> None:
    """Devlin et al. 2019 for `random_token`, google-research/electra for all others."""
    shares = (0.8, 0.1) if name == "random_token" else (0.85, 0.0)
    options = masking_strategies.get(name).component.__kwdefaults__
    assert (options["mask_prob"], options["replace_prob"], options["random_prob"]) == (0.15, *shares)


@pytest.mark.parametrize(("name", "options"), [("whole_word", {}), ("span", {"longest": 1})])
def test_words_of_one_token_are_chosen_equally_often(name: str, options: dict[str, int]) -> None:
    """The position of a word does not matter to `whole_word` and to spans of one word."""
    tokens = torch.full((4000, 20), 5)
    result = masked(name, tokens, tokens > 0, scattered(), mask_prob=0.2, **options)
    found = torch.bincount(result.positions[result.valid], minlength=20).double()
    assert chi_square_p(found, torch.full((20,), 0.05).double()) > SIGNIFICANCE
