"""Whole words: which tokens go together, and how the count is kept."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_lab.testing import batches, count, vocabulary
from tests.electra_lab.masking.strategies import masked, words_of


@settings(max_examples=150, deadline=None)
@given(batch=batches(24), mask_prob=st.sampled_from([0.15, 0.3, 0.6, 1.0]), step=st.integers(0, 1000))
def test_words_are_masked_whole_and_as_many_as_fit(
    batch: tuple[torch.Tensor, torch.Tensor], mask_prob: float, step: int
) -> None:
    words = vocabulary(24)
    tokens, maskable = batch
    result = masked("whole_word", tokens, maskable, words, step, mask_prob=mask_prob)
    for row in range(len(tokens)):
        chosen = set(result.positions[row][result.valid[row]].tolist())
        most, all_words = (
            count(mask_prob, int(maskable[row].sum())),
            words_of(tokens[row].tolist(), maskable[row].tolist(), words),
        )
        whole = [word for word in all_words if set(word) <= chosen]
        if chosen != {place for word in whole for place in word}:
            assert len(chosen) == 1
            assert all(len(word) > most for word in all_words), "a word was torn although one fitted"
        left_out = [word for word in all_words if not set(word) & chosen]
        if whole:
            assert all(len(word) > most - len(chosen) for word in left_out), "a word that fits was left out"
