"""The number of words that training has read."""

from typing import Any

import numpy as np
import pytest
import torch

from electra_lab.data.rows import Rows
from electra_lab.data.words import steps_of_words, words_of_rows
from electra_lab.packings.contiguous import Contiguous
from electra_lab.packings.documents import Documents
from electra_lab.testing import ArrayTokens, vocabulary
from tests.electra_lab.data.test_rows import Bare

CPU, SEED, SIZE = torch.device("cpu"), 3, 4
VOCABULARY = vocabulary(50)


def text(documents: list[range], words: list[int]) -> Any:
    tokens: Any = ArrayTokens(documents)
    tokens.words = np.array(words, np.uint32)
    return tokens


def test_the_first_step_that_has_read_them() -> None:
    """One document per row, with different numbers of words, read in training order for a little over two epochs."""
    documents = [range(5, 6 + number % 7) for number in range(30)]
    words = [1 + number * number % 11 for number in range(30)]
    rows = Rows(Documents(text(documents, words), 12, VOCABULARY))
    batches = (rows.training_batch(SEED, step, SIZE, CPU) for step in range(17))
    read = np.cumsum([np.array(words)[batch.row_ids].sum() for batch in batches])
    by_row = words_of_rows(rows, text(documents, words), VOCABULARY)
    assert by_row == pytest.approx(words)
    wanted = [1, read[0], read[0] + 1, read[6], read[6] + 0.5, read[16], read[16] + 1]
    found, end = steps_of_words(wanted, by_row, rows, SEED, SIZE, 17)
    assert found == [1, 1, 2, 7, 8, 17, 18]
    assert end == pytest.approx(read[16])


def test_an_epoch_has_all_words_however_documents_are_cut() -> None:
    """If a document is cut into two rows, each has its share of words; padding, [CLS] and [SEP] have none."""
    documents, words = [range(5, 9), range(5, 17), range(5, 6)], [2, 6, 1]
    tokens = text(documents, words)
    rows = Rows(Contiguous(tokens, 9, VOCABULARY))
    by_row = words_of_rows(rows, tokens, VOCABULARY)
    # Rows have 7 tokens of the text: 4, [SEP] and 2 of 12; 7 of 12; 3 of 12, [SEP], 1, [SEP].
    assert by_row == pytest.approx([2 + 6 * 2 / 12, 6 * 7 / 12, 6 * 3 / 12 + 1])
    assert steps_of_words([9, 18, 18.1], by_row, rows, SEED, 3, 2)[0] == [1, 2, 3]


def test_rows_of_a_packing_that_hides_its_documents_have_the_mean() -> None:
    tokens = text([range(5, 9), range(5, 7)], [1, 4])
    bare: Any = Bare(Documents(tokens, 9, VOCABULARY))
    assert words_of_rows(Rows(bare), tokens, VOCABULARY).tolist() == [2.5, 2.5]
