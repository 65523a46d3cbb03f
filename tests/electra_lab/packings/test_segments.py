"""`segments`: pairs, single segments and short rows, in the shares of google-research/electra."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from electra_lab.packings.segments import Segments, draw
from electra_lab.testing import CLS, PAD, SEP, SIGNIFICANCE, ArrayTokens, binomial_p, chi_square_p
from electra_lab.testing import vocabulary as of_size
from registry import Packed, Vocabulary

STOP = 9


def words(*stops: int) -> Vocabulary:
    known = of_size(50)
    return replace(known, sentence_end=torch.isin(torch.arange(50), torch.tensor(stops, dtype=torch.long)))


def packed(texts: list[list[int]], length: int, *stops: int, single: float = 0.0, short: float = 0.0) -> Packed:
    made = Segments(ArrayTokens(texts), length, words(*stops), single=single, short=short)
    return made.rows(np.arange(len(made)))


def test_a_pair() -> None:
    rows = packed([[6, STOP, 7, STOP, 8, 8, 8, 10, 11]], 13, STOP)  # half of the row is 5
    assert rows.tokens.tolist() == [[CLS, 6, STOP, 7, STOP, SEP, 8, 8, 8, 10, 11, SEP, PAD]]
    assert rows.segments.tolist() == [[0] * 6 + [1] * 6 + [0]]


def test_what_exceeds_a_row_is_carried_on() -> None:
    rows = packed([[*range(20, 40)]], 13)
    assert rows.tokens.tolist() == [
        [CLS, *range(20, 25), SEP, *range(25, 30), SEP],
        [CLS, *range(30, 35), SEP, *range(35, 40), SEP],
    ]


def test_the_end_of_a_document_that_does_not_reach_the_half_is_one_segment() -> None:
    rows = packed([[20, 21, STOP, 22, 23]], 13, STOP)
    assert rows.tokens.tolist() == [[CLS, 20, 21, STOP, 22, 23, SEP, *[PAD] * 6]]
    assert not rows.segments.any()


@pytest.mark.parametrize(
    ("stops", "sizes"),
    [
        ((3, 7), {3, 7}),  # the sentence that crosses the middle goes to A or to B
        ((1, 3, 7, 8), {3, 7}),
        ((5,), {5}),  # a sentence that reaches the middle crosses it
        ((2,), {2}),
        ((8,), {8}),
        ((), {5}),  # in the middle
        ((10,), {5}),  # B is never empty
    ],
)
def test_where_a_ends(stops: tuple[int, ...], sizes: set[int]) -> None:
    piece = [STOP if n + 1 in stops else 20 for n in range(10)]
    rows = packed([piece] * 200, 13, STOP)
    first = (rows.segments[:, 1:] == 0).argmin(1) - 1  # less [SEP]
    assert set(first.tolist()) == sizes
    if len(sizes) == 2:
        assert binomial_p(int((first == min(sizes)).sum()), 200, 0.5) > SIGNIFICANCE


def test_without_knowledge_of_sentences_rows_are_cut_in_the_middle() -> None:
    made = Segments(ArrayTokens([[20] * 10]), 13, replace(of_size(50), sentence_end=None), single=0.0, short=0.0)
    assert made.rows(np.arange(1)).segments.tolist() == [[0] * 7 + [1] * 6]


def test_shares_of_the_official_code() -> None:
    """One row in ten is a single segment, one in twenty has another length, uniform from 5 to the row's."""
    length, documents = 32, 1000
    made = Segments(ArrayTokens([[20] * 200] * documents), length, words())
    # The last row of a document has the rest.
    rows = made.rows(np.setdiff1d(np.arange(len(made)), made.first[1:] - 1))
    single = rows.segments.sum(1) == 0
    full = rows.attention_mask.all(1)
    assert binomial_p(int(single.sum()), len(single), 0.1) > SIGNIFICANCE
    assert binomial_p(int((~full).sum()), len(full), 0.05 * (length - 5) / (length - 4)) > SIGNIFICANCE
    sizes = rows.attention_mask[~full].sum(1)
    counts = torch.bincount(torch.tensor(sizes), minlength=length)[5:length].double()
    assert len(counts) == length - 5
    assert sizes.min() >= 5
    assert chi_square_p(counts, torch.full_like(counts, 1 / len(counts))) > SIGNIFICANCE


def test_draws_are_uniform_and_independent() -> None:
    document, number = (grid.ravel() for grid in np.meshgrid(np.arange(300), np.arange(200)))
    drawn = draw(document, number)
    assert ((drawn >= 0) & (drawn < 1)).all()
    limit = 6 / np.sqrt(document.size)
    assert abs(drawn.mean(1) - 0.5).max() < limit
    assert abs(drawn.var(1) - 1 / 12).max() < limit
    near = [*drawn, drawn[0].reshape(200, 300).T.ravel(), np.roll(drawn[0], 1), np.roll(drawn[0], 300)]
    correlation = np.corrcoef(near) - np.eye(len(near))
    assert abs(correlation[:4]).max() < limit


def test_rows_of_stores_that_exist() -> None:
    """If this fails, the rows of all existing runs would change: do not change the literals."""
    made = Segments(ArrayTokens([[20] * 3000, [20] * 3000]), 64, words(), single=0.3, short=0.3)
    sizes = made.lengths(np.arange(len(made)))
    assert (len(made), int(made.first[1])) == (113, 55)
    assert sizes[8:24].tolist() == [64, 26, 64, 64, 64, 64, 64, 64, 64, 36, 64, 58, 64, 64, 44, 64]
