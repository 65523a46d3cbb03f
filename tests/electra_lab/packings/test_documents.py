"""`documents`: one document in a row."""

import numpy as np

from electra_lab.packings.documents import Documents
from electra_lab.testing import CLS, PAD, SEP, ArrayTokens, vocabulary


def test_rows() -> None:
    made = Documents(ArrayTokens([[5, 6, 7], [8], range(10, 18)]), 5, vocabulary(50))
    assert made.rows(np.arange(len(made))).tokens.tolist() == [
        [CLS, 5, 6, 7, SEP],
        [CLS, 8, SEP, PAD, PAD],
        [CLS, 10, 11, 12, SEP],
        [CLS, 13, 14, 15, SEP],
        [CLS, 16, 17, SEP, PAD],
    ]


def test_a_separator_within_a_document_is_an_ordinary_token() -> None:
    made = Documents(ArrayTokens([[5, 6, SEP, 7, 8]]), 5, vocabulary(50))
    assert made.rows(np.arange(2)).tokens.tolist() == [[CLS, 5, 6, SEP, SEP], [CLS, 7, 8, SEP, PAD]]


def test_many_documents_are_packed_at_once() -> None:
    """In about as long as numpy needs, not Python."""
    lengths = np.random.RandomState(0).randint(2, 300, 200_000)
    tokens = ArrayTokens([[5]])
    tokens.lengths = lengths.astype(np.uint32)
    made = Documents(tokens, 64, vocabulary(50))
    assert len(made) == sum(max(-(-(int(n) - 1) // 62), 1) for n in lengths)
    rows = np.random.RandomState(1).randint(0, len(made), 1000)
    assert made.lengths(rows).max() == 64
