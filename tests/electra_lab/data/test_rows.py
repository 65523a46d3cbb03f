"""Rows cut from a token stream, and their order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from electra_lab.data.rows import Rows, _order
from electra_lab.testing import CLS, MASK, PAD, SEP, vocabulary
from registry import Batch

CPU = torch.device("cpu")
SIZE = 50

documents = st.lists(st.lists(st.integers(5, SIZE - 1), min_size=1, max_size=25), min_size=1, max_size=12)
lengths = st.integers(3, 20)


def rows(texts: list[list[int]], length: int) -> Rows:
    return Rows(np.array([id for text in texts for id in [*text, SEP]], dtype=np.uint16), length, vocabulary(SIZE))


def counting(number: int, length: int = 5) -> Rows:
    """`number` rows, told apart by their content."""
    return rows([[5 + n % (SIZE - 5) for n in range(number * (length - 2) - 1)]], length)


def one_batch(made: Rows) -> Batch:
    indices = np.arange(len(made))
    return made.batch(indices, indices, CPU)


@given(texts=documents, length=lengths)
def test_every_token_appears_once_and_in_order(texts: list[list[int]], length: int) -> None:
    """What [CLS], [SEP] and padding leave is the text, and every document is closed by one [SEP]."""
    made = rows(texts, length)
    batch = one_batch(made)
    inside = batch.tokens[batch.attention_mask]
    assert inside[(inside != CLS) & (inside != SEP)].tolist() == [id for text in texts for id in text]
    # A row ends with a document exactly if its [SEP] is one of the stream's.
    stream: list[int] = []
    for row, real in zip(batch.tokens, batch.attention_mask, strict=True):
        piece = row[real].tolist()[1:]
        room = made.stream[len(stream) : len(stream) + length - 2].tolist()
        assert piece in (room, [*room, SEP])
        assert (piece == room) == (room[-1] == SEP)
        stream += room
    assert stream == made.stream.tolist()


@given(texts=documents, length=lengths)
def test_a_row_begins_with_cls_and_ends_with_sep(texts: list[list[int]], length: int) -> None:
    batch = one_batch(rows(texts, length))
    assert batch.tokens.shape == batch.attention_mask.shape == (len(batch), length)
    for row, real in zip(batch.tokens.tolist(), batch.attention_mask.tolist(), strict=True):
        size = sum(real)
        assert real == [True] * size + [False] * (length - size)
        assert row[0] == CLS
        assert row[size - 1] == SEP
        assert CLS not in row[1:]
        assert MASK not in row
        assert PAD not in row[:size]
        assert set(row[size:]) <= {PAD}
        assert (SEP, SEP) not in set(pairwise(row))


@given(texts=documents, length=lengths)
def test_only_the_last_row_is_padded_by_more_than_a_separator(texts: list[list[int]], length: int) -> None:
    batch = one_batch(rows(texts, length))
    assert (batch.attention_mask[:-1].sum(1) >= length - 1).all()
    assert batch.attention_mask[-1].sum() >= 2


@given(texts=documents, length=lengths)
def test_segments_and_types(texts: list[list[int]], length: int) -> None:
    batch = one_batch(rows(texts, length))
    assert not batch.segments.any()
    assert batch.segments.shape == batch.tokens.shape
    assert (batch.tokens.dtype, batch.segments.dtype, batch.example_ids.dtype) == (torch.int64,) * 3
    assert batch.attention_mask.dtype == torch.bool


def epochs(made: Rows, seed: int, size: int, steps: int) -> Tensor:
    return torch.cat([made.training_batch(seed, step, size, CPU).tokens for step in range(steps)])


@given(number=st.integers(1, 13), size=st.integers(1, 30), seed=st.integers(0, 2**40))
def test_each_epoch_reads_every_row_once_without_a_gap(number: int, size: int, seed: int) -> None:
    """Whatever the batch size, also where a batch is longer than an epoch; it changes only the cuts."""
    made = counting(number)
    assert len(made) == number
    whole = one_batch(made).tokens
    read = epochs(made, seed, size, -(-3 * number // size))
    for epoch in range(3):
        part = read[epoch * number : (epoch + 1) * number]
        assert sorted(part.tolist()) == sorted(whole.tolist())
        assert torch.equal(part, whole[_order(seed, epoch, number)])


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    made = counting(40)
    one, again, other = (epochs(made, seed, 8, 10) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert not torch.equal(one[:40], one[40:])
    np.random.seed(7)
    torch.manual_seed(7)
    assert torch.equal(made.training_batch(0, 3, 8, CPU).tokens, one[24:32])


def test_the_order_of_published_runs() -> None:
    """If this fails, every run in the world reads its data in another order: do not change the literals."""
    assert _order(0, 0, 12).tolist() == [3, 9, 1, 0, 8, 7, 4, 6, 5, 11, 2, 10]
    assert _order(1, 3, 7).tolist() == [2, 6, 4, 5, 1, 3, 0]


@given(number=st.integers(1, 13), size=st.integers(1, 15))
def test_evaluation_reads_all_rows_once_in_order(number: int, size: int) -> None:
    """An example's index is the row's own, so that batch size changes nothing."""
    made = counting(number)
    batches = list(made.in_order(size, CPU))
    assert [len(batch) for batch in batches[:-1]] == [size] * (len(batches) - 1)
    assert torch.equal(torch.cat([batch.tokens for batch in batches]), one_batch(made).tokens)
    assert torch.cat([batch.example_ids for batch in batches]).tolist() == list(range(number))


@pytest.mark.parametrize("step", [0, 1, 5])
def test_examples_of_a_training_batch_count_the_global_batch(step: int) -> None:
    batch = counting(7).training_batch(0, step, 4, CPU)
    assert batch.example_ids.tolist() == [0, 1, 2, 3]
    assert batch[2:].example_ids.tolist() == [2, 3]
