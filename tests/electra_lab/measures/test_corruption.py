"""The choice of replaced tokens and of their replacements."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from electra_lab.measures._corruption import choose, draw, filled, judged, numbers, rankable, some, unigram
from electra_lab.testing import CLS, MASK, PAD, SEP, SIGNIFICANCE, UNK, batches, chi_square_p, count, vocabulary
from electra_lab.testing.common import as_batch
from registry.errors import DivergedError
from tests.electra_lab.measures.readers import LENGTH, SIZE, sentence

BELOW_ONE = 1 - 2.0**-53
PINNED = [[0.8463587525897693, 0.9681358522978686], [0.8731469096971929, 0.8336337053314573]]


def test_numbers_are_a_function_of_seed_purpose_and_example() -> None:
    text = sentence(9)
    whole = numbers(text, 1, "chosen")
    assert whole.shape == (9, LENGTH)
    assert np.array_equal(whole[4:7], numbers(text[4:7], 1, "chosen"))
    assert np.array_equal(whole, numbers(replace(text, tokens=text.tokens + 1), 1, "chosen"))
    others = [numbers(text, 2, "chosen"), numbers(text, 1, "unigram")]
    assert all(len(np.unique(np.concatenate([whole, other]))) == 2 * whole.size for other in others)


@given(total=st.integers(1, 200), number=st.integers(1, 250), seed=st.integers(0, 2**63 - 1))
def test_some_rows_are_different_ones_in_order(total: int, number: int, seed: int) -> None:
    rows = some(number, total, seed)
    assert rows == sorted(set(rows)) == some(number, total, seed)
    assert set(rows) <= set(range(total))
    assert len(rows) == min(number, total)


def test_every_row_is_taken_equally_often() -> None:
    times = torch.bincount(torch.tensor([row for seed in range(600) for row in some(4, 9, seed)]), minlength=9)
    # Counts without replacement vary less than a multinomial's, so the statistic can only be smaller.
    assert chi_square_p(times.double(), torch.full((9,), 1 / 9)) > SIGNIFICANCE


def test_numbers_and_rows_never_change() -> None:
    """So that an old probe can be fitted to the same rows again."""
    assert numbers(sentence(2), 20_201, "chosen")[:, :2].tolist() == PINNED
    assert some(3, 10_000, 20_202) == [2303, 3718, 6269]
    assert len(some(64, 10**15, 7)) == 64, "a huge text takes no memory"


@given(data=st.data(), share=st.floats(0.01, 1), seed=st.integers(0, 2**32))
def test_choose_takes_the_share_of_every_row(data: st.DataObject, share: float, seed: int) -> None:
    """Exactly ceil(share * m) of m, rows with 0 and 1 included, and nothing else."""
    tokens, real = data.draw(batches(SIZE))
    maskable = real.numpy()
    luck = numbers(as_batch(tokens), seed, "chosen")
    chosen = choose(maskable, share, luck)
    assert not (chosen & ~maskable).any()
    assert chosen.sum(1).tolist() == [count(share, int(m)) for m in maskable.sum(1)]
    assert np.array_equal(chosen[-1:], choose(maskable[-1:], share, luck[-1:])), "a row depends on other rows"
    smallest = [sorted(luck[i][maskable[i]])[: chosen[i].sum()] for i in range(len(tokens))]
    assert all(sorted(luck[i][chosen[i]]) == smallest[i] for i in range(len(tokens)))


def test_every_token_is_chosen_equally_often() -> None:
    text = as_batch(torch.full((1000, 9), 7))
    maskable = np.ones((1000, 9), dtype=np.bool_)
    maskable[:, [0, 5]] = False
    chosen = choose(maskable, 0.15, numbers(text, 3, "chosen"))
    times = torch.from_numpy(chosen.sum(0)).double()
    assert times.sum() == 2000
    assert times[[0, 5]].sum() == 0
    assert chi_square_p(times, torch.from_numpy(maskable[0] / 7)) > SIGNIFICANCE


def test_neither_padding_nor_special_tokens_are_judged() -> None:
    tokens = torch.tensor([[CLS, 7, UNK, MASK, SEP, 8, PAD]])
    mask = torch.tensor([[True] * 5 + [False] * 2])
    assert judged(as_batch(tokens, mask), vocabulary(SIZE)).tolist() == [[False, True, True] + [False] * 4]


def test_unigram_draws_follow_add_one_frequencies() -> None:
    words = vocabulary(200)
    words = replace(words, counts=words.counts * (torch.arange(200) % 5 > 0))  # some were never seen
    text = as_batch(torch.full((400, 60), 7))
    everywhere = np.ones((400, 60), dtype=np.bool_)
    drawn = unigram(text, words, everywhere, numbers(text, 1, "unigram"))
    seen = torch.bincount(torch.from_numpy(drawn).flatten(), minlength=200).double()
    weights = (words.counts + 1).double() * ~words.is_special
    assert seen[words.is_special].sum() == 0
    assert chi_square_p(seen, weights / weights.sum()) > SIGNIFICANCE


@pytest.mark.parametrize("luck", [0.0, BELOW_ONE])
def test_unigram_draws_ordinary_tokens_at_the_ends(luck: float) -> None:
    """Special ids are at both ends of the vocabulary, where a careless inversion of the sums would end."""
    words = vocabulary(SIZE)
    special = words.is_special.clone()
    special[-3:] = True
    ids = tuple(special.nonzero().squeeze(1).tolist())
    words = replace(words, is_special=special, special_ids=ids, ordinary_ids=(~special).nonzero().squeeze(1))
    text = as_batch(torch.full((1, 1), 7))
    drawn = unigram(text, words, np.ones((1, 1), dtype=np.bool_), np.full((1, 1), luck))
    assert drawn.item() == words.ordinary_ids[0 if luck == 0 else -1]
    guess = draw(torch.full((1, SIZE), 3.0).index_fill(1, torch.tensor([1, 5, 36]), -math.inf), words, np.array([luck]))
    assert guess.item() == (6 if luck == 0 else 35), "a token without probability was drawn"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draws_follow_the_softmax_over_ordinary_tokens(dtype: torch.dtype) -> None:
    words = vocabulary(SIZE)
    logits = torch.randn(SIZE, generator=torch.Generator().manual_seed(2)).to(dtype)
    logits[list(words.special_ids)] = 50.0
    luck = numbers(as_batch(torch.zeros(1, 20_000, dtype=torch.int64)), 0, "reference")[0]
    drawn = draw(logits.expand(20_000, -1), words, luck)
    seen = torch.bincount(torch.from_numpy(drawn), minlength=SIZE).double()
    expected = logits.double().masked_fill(words.is_special, -math.inf).softmax(0)
    assert seen[words.is_special].sum() == 0
    assert chi_square_p(seen, expected) > SIGNIFICANCE


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_nothing_is_drawn_from_lost_numbers(lost: float) -> None:
    with pytest.raises(DivergedError, match="not finite"):
        draw(torch.full((2, SIZE), lost), vocabulary(SIZE), np.array([0.5, 0.5]))


def test_filled_puts_tokens_row_by_row_and_leaves_the_text() -> None:
    text = sentence(3)
    before = text.tokens.clone()
    chosen = np.zeros((3, LENGTH), dtype=np.bool_)
    chosen[0, [2, 5]] = chosen[2, 1] = True
    made = filled(text, chosen, np.array([11, 12, 13]))
    assert (made[0, 2], made[0, 5], made[2, 1]) == (11, 12, 13)
    assert (made != before.numpy()).sum() == 3
    assert torch.equal(text.tokens, before)


RANKED: list[tuple[list[int], list[float], bool]] = [
    ([0, 1], [0.0, 1.0], True),
    ([0, 0], [0.0, 1.0], False),
    ([1, 1], [0.0, 1.0], False),
    ([], [], False),
    ([0, 1], [0.0, math.nan], False),
    ([0, 1], [-math.inf, 0.0], False),
]


@pytest.mark.parametrize(("replaced", "scores", "expected"), RANKED)
def test_what_can_be_ranked(replaced: list[int], scores: list[float], expected: Any) -> None:
    assert rankable(np.array(replaced, dtype=np.bool_), np.array(scores)) is expected
