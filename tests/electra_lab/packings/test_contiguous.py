"""`contiguous`: full rows and their documents; `documents`: one document per row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_lab.packings.contiguous import Contiguous
from electra_lab.packings.documents import Documents
from electra_lab.testing import CLS, PAD, SEP, ArrayTokens, vocabulary
from registry import packings

texts = st.lists(st.lists(st.integers(5, 49), min_size=1, max_size=25), min_size=1, max_size=12)
lengths = st.integers(3, 20)
WORDS = vocabulary(50)


@settings(deadline=None)
@given(texts=texts, length=lengths)
def test_rows_are_pieces_of_the_stream(texts: list[list[int]], length: int) -> None:
    """[CLS], length - 2 tokens of the stream, [SEP] unless the piece ends with one, padding."""
    stream = [token for text in texts for token in [*text, SEP]]
    expected = []
    for start in range(0, len(stream), length - 2):
        piece = stream[start : start + length - 2]
        row = [CLS, *piece, *([] if piece[-1] == SEP else [SEP])]
        expected.append(row + [PAD] * (length - len(row)))
    made = Contiguous(ArrayTokens(texts), length, WORDS)
    assert len(made) == len(expected)
    packed = made.rows(np.arange(len(made)))
    assert packed.tokens.tolist() == expected
    assert (packed.attention_mask == (packed.tokens != PAD)).all()
    assert not packed.segments.any()


def test_documents_of_rows() -> None:
    """Two documents that begin in the row, one that continues, and padding."""
    made = Contiguous(ArrayTokens([[7] * 4, [8] * 2, [9] * 9]), 10, WORDS, attention="within_documents")
    packed = made.rows(np.arange(3))
    assert packed.documents is not None
    assert packed.tokens.tolist() == [
        [CLS, 7, 7, 7, 7, SEP, 8, 8, SEP, PAD],
        [CLS, 9, 9, 9, 9, 9, 9, 9, 9, SEP],
        [CLS, 9, SEP, *[PAD] * 7],
    ]
    assert packed.documents.tolist() == [[0] * 6 + [1] * 3 + [-1], [0] * 10, [0] * 3 + [-1] * 7]
    assert packed.documents[[0]].max() == 1


@pytest.mark.parametrize("attention", ["full", "within_documents"])
def test_sources_count_the_documents_of_the_split(attention: str) -> None:
    """From 0, like documents of rows, for tokens of the text; [CLS], an added [SEP] and padding are arbitrary."""
    made = Contiguous(ArrayTokens([[7] * 4, [8] * 2, [9] * 9]), 10, WORDS, attention=attention)
    rows = np.arange(3)
    found, tokens = made.source_document_ids(rows), made.rows(rows).tokens
    assert found[tokens >= 7].tolist() == [*[0] * 4, *[1] * 2, *[2] * 9]
    assert found[0, [5, 8]].tolist() == [0, 1], "the [SEP] of a document belongs to it"
    assert made.source_document_ids(np.array([2, 1]))[:, 1].tolist() == [2, 2]


def test_plain_training_does_not_hold_where_documents_start() -> None:
    made = Contiguous(ArrayTokens([[7] * 4, [8] * 2]), 10, WORDS)
    made.rows(np.arange(1))
    assert "documents" not in vars(made)
    made.source_document_ids(np.arange(1))
    assert "documents" in vars(made)


def test_documents_come_from_their_lengths() -> None:
    """Also if a document contains a [SEP]."""
    made = Contiguous(ArrayTokens([[7, SEP, 7], [8]]), 10, WORDS, attention="within_documents")
    packed = made.rows(np.arange(1))
    assert packed.documents is not None
    assert packed.documents.tolist() == [[0] * 5 + [1] * 2 + [-1] * 3]


@pytest.mark.parametrize(("attention", "separates"), [("full", False), ("within_documents", True)])
def test_declares_what_attention_must_do(attention: str, separates: bool) -> None:
    declared = packings.get("contiguous").declared
    assert declared["crosses_documents"]
    assert declared["separates_documents"](attention=attention) == separates


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
    """At the speed of numpy, not of Python loops."""
    lengths = np.random.RandomState(0).randint(2, 300, 200_000)
    tokens = ArrayTokens([[5]])
    tokens.lengths = lengths.astype(np.uint32)
    made = Documents(tokens, 64, vocabulary(50))
    assert len(made) == sum(max(-(-(int(n) - 1) // 62), 1) for n in lengths)
    rows = np.random.RandomState(1).randint(0, len(made), 1000)
    assert made.lengths(rows).max() == 64
