"""Rows of different lengths as batches."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_lab.data.task_rows import IGNORED, TaskRows
from registry import Row
from registry.errors import DataError

CPU = torch.device("cpu")


def row(number: int, length: int) -> Row:
    tokens = [100 * number + place for place in range(1, length + 1)]
    return Row(tokens, [place % 2 for place in range(length)], {"number": number, "tags": [7 * t for t in tokens]})


@st.composite
def several(draw: st.DrawFn) -> list[Row]:
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=30))
    return [row(number, length) for number, length in enumerate(lengths)]


def seen(batch: Any) -> list[tuple[list[int], list[int], int, list[int]]]:
    """Return tokens, segments and labels of each row of a batch; checks what pads it."""
    found, labels = [], batch.labels
    of_rows = batch.tokens, batch.attention_mask, batch.segments, labels["number"], labels["tags"]
    for tokens, mask, segments, number, tags in zip(*of_rows, strict=True):
        size = int(mask.sum())
        assert mask[:size].all()
        assert not tokens[size:].any()
        assert not segments[size:].any()
        assert (tags[size:] == IGNORED).all()
        found.append((tokens[:size].tolist(), segments[:size].tolist(), int(number), tags[:size].tolist()))
    real = batch.attention_mask
    assert real.sum(1).max() == real.shape[1]  # no batch is wider than its longest row
    return found


def expected(row: Row) -> tuple[list[int], list[int], int, list[int]]:
    return [*row.tokens], [*row.segments], row.labels["number"], [*row.labels["tags"]]  # type: ignore[return-value]


@given(several(), st.integers(1, 7))
def test_evaluation_reads_every_row_once_the_longest_first(rows: list[Row], size: int) -> None:
    batches = list(TaskRows(rows).in_order(size, CPU))
    ids = [id for batch in batches for id in batch.example_ids.tolist()]
    assert sorted(ids) == list(range(len(rows)))
    assert [found for batch in batches for found in seen(batch)] == [expected(rows[id]) for id in ids]
    lengths = [len(rows[id].tokens) for id in ids]
    assert lengths == sorted(lengths, reverse=True)


@settings(max_examples=50)
@given(several(), st.integers(1, 7), st.booleans(), st.integers(0, 3))
def test_an_epoch_of_training_reads_every_row_once(rows: list[Row], size: int, by_length: bool, seed: int) -> None:
    batches = TaskRows(rows, group_by_length=by_length)
    found = [batches.training_batch(seed, step, size, CPU) for step in range(len(rows))]
    numbers = np.array([number for batch in found for _, _, number, _ in seen(batch)])
    assert np.bincount(numbers).tolist() == [size] * len(rows)
    for batch in found:
        assert seen(batch) == [expected(rows[number]) for number in batch.labels["number"].tolist()]
        assert batch.example_ids.tolist() == list(range(size))


def test_a_part_of_a_batch_is_that_part() -> None:
    batches = TaskRows([row(n, 1 + n % 5) for n in range(20)], group_by_length=True)
    whole, part = (batches.training_batch(3, 1, 8, CPU, part=part) for part in (slice(None), slice(2, 5)))
    assert seen(part) == seen(whole)[2:5]
    assert part.example_ids.tolist() == [2, 3, 4]


def test_grouped_batches_hold_less_padding() -> None:
    rows, padding = [row(n, 1 + (7 * n) % 40) for n in range(400)], []
    for by_length in (True, False):
        batches = TaskRows(rows, group_by_length=by_length)
        masks = [batches.training_batch(0, step, 10, CPU).attention_mask for step in range(40)]
        padding.append(float(sum((~mask).sum() for mask in masks)) / sum(mask.numel() for mask in masks))
    assert padding[0] < 0.5 * padding[1]


@pytest.mark.parametrize("longest", [3, 8, 21])
def test_batches_whose_steps_are_recorded_have_few_widths(longest: int) -> None:
    rows = [row(n, 1 + n % longest) for n in range(200)]
    widths, plain = set(), set()
    for step in range(100):
        few = TaskRows(rows, few_widths=True).training_batch(0, step, 2, CPU)
        many = TaskRows(rows).training_batch(0, step, 2, CPU)
        widths.add(few.tokens.shape[1])
        plain.add(many.tokens.shape[1])
        own, extra = many.tokens.shape[1], few.tokens.shape[1] - many.tokens.shape[1]
        assert 0 <= extra < -(-longest // 8)
        assert torch.equal(few.tokens[:, :own], many.tokens)
        assert not few.attention_mask[:, own:].any()
        assert (few.labels["tags"][:, own:] == IGNORED).all()
    assert len(widths) <= 8
    assert max(widths) == longest == max(plain)
    assert len(widths) < len(plain) or longest <= 8


def test_rows_without_labels_have_none() -> None:
    batches = TaskRows([Row([1, 2], [0, 0]), Row([3], [0])])
    (batch,) = batches.in_order(2, CPU)
    assert batch.labels == {}
    assert batches.tokens == 3


def test_rows_with_and_without_labels_do_not_go_together() -> None:
    with pytest.raises(DataError, match="some examples have labels and others have none"):
        TaskRows([row(0, 3), Row([1], [0])])
