"""Laws of packings, and of the batches that are read from them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from electra_lab.data.rows import Rows
from electra_lab.data.vocabulary import ArrayTokens
from electra_lab.testing.common import CLS, PAD, SEP, Contract, law, vocabulary
from registry import Packed, Packing, packings

IndexArray = NDArray[np.int64]

ORDINARY = 5  # the first id that is not special
CPU = torch.device("cpu")

# The number of ordinary tokens in each document.
documents = st.lists(st.integers(1, 70), min_size=1, max_size=12)
lengths = st.integers(8, 24)


class Text(ArrayTokens):
    """Documents of the given sizes in which no two tokens are equal, so that each one can be found again."""

    def __init__(self, sizes: Sequence[int]) -> None:
        ends = np.cumsum(sizes)
        super().__init__([range(ORDINARY + end - size, ORDINARY + end) for end, size in zip(ends, sizes, strict=True)])
        self.ends, self.size = ends, ORDINARY + int(ends[-1])

    def document(self, tokens: IndexArray) -> IndexArray:
        """Return the document of each ordinary token."""
        return np.searchsorted(self.ends, tokens - ORDINARY, side="right")


class PackingContract(Contract):
    """Laws of packings, for documents of 1 to 70 tokens and rows of 8 to 24."""

    registry = packings

    def packing(self, text: Text, length: int) -> Packing:
        made: Packing = self.component()(text, length, vocabulary(text.size))
        return made

    @cached_property
    def separates(self) -> bool:
        return bool(self.declared("separates_documents"))

    @law
    @given(sizes=documents, length=lengths)
    def test_every_token_comes_once_and_in_order(self, sizes: list[int], length: int) -> None:
        """What [CLS], [SEP] and padding leave is the text; each document is closed by [SEP]."""
        text = Text(sizes)
        packed = every_row(self.packing(text, length))
        real = packed.tokens[packed.attention_mask]
        ordinary = real[real >= ORDINARY]
        assert ordinary.tolist() == list(range(ORDINARY, text.size))
        followed = np.append(real[1:], PAD)[np.isin(real, text.ends + ORDINARY - 1)]
        assert (followed == SEP).all(), "a document ends without [SEP]"

    @law
    @given(sizes=documents, length=lengths)
    def test_form_of_rows(self, sizes: list[int], length: int) -> None:
        """Types, shapes, [CLS] first, [SEP] last, the mask on real tokens, padding behind, segments 0 and 1."""
        packing = self.packing(Text(sizes), length)
        packed = every_row(packing)
        shape = (len(packing), length)
        assert packed.tokens.shape == packed.attention_mask.shape == packed.segments.shape == shape
        assert packed.tokens.dtype == packed.segments.dtype == np.int64
        assert packed.attention_mask.dtype == np.bool_
        assert ((packed.tokens != PAD) == packed.attention_mask).all()
        sizes_of_rows = packed.attention_mask.sum(1)
        assert (packed.attention_mask == (np.arange(length) < sizes_of_rows[:, None])).all()
        assert (packed.tokens[:, 0] == CLS).all()
        assert (packed.tokens == CLS).sum() == len(packing)
        assert (packed.tokens[np.arange(len(packing)), sizes_of_rows - 1] == SEP).all()
        assert not ((packed.tokens[:, 1:] == SEP) & (packed.tokens[:, :-1] == SEP)).any(), "two [SEP] in a row"
        assert np.isin(packed.segments, (0, 1)).all()
        assert not packed.segments[~packed.attention_mask].any(), "padding is not in segment 0"

    @law
    @given(sizes=documents, length=lengths)
    def test_no_row_crosses_a_boundary_that_is_forbidden(self, sizes: list[int], length: int) -> None:
        """Rows hold one document, unless the packing declares `crosses_documents`."""
        text = Text(sizes)
        if self.registry.get(self.name).declared["crosses_documents"]:
            pytest.skip("rows of this packing may hold several documents")
        for row in every_row(self.packing(text, length)).tokens:
            numbers = set(text.document(row[row >= ORDINARY]).tolist())
            assert len(numbers) == 1, f"a row holds the documents {sorted(numbers)}"

    @law
    @given(sizes=documents, length=lengths)
    def test_documents_to_separate(self, sizes: list[int], length: int) -> None:
        """A number for each document of a row; [CLS] has the first one's, a [SEP] that of the token before it."""
        text = Text(sizes)
        packed = every_row(self.packing(text, length))
        if not self.separates:
            assert packed.documents is None
            return
        assert packed.documents is not None
        assert packed.documents.shape == packed.tokens.shape
        assert packed.documents.dtype == np.int64
        for row, real, numbers in zip(packed.tokens, packed.attention_mask, packed.documents, strict=True):
            assert (numbers[~real] == -1).all()
            expected = row.copy()
            expected[0] = row[1]
            for place in np.flatnonzero(real & (row == SEP)):
                expected[place] = expected[place - 1]
            owner = text.document(expected[real])
            changes = numbers[real][1:] != numbers[real][:-1]
            assert (changes == (owner[1:] != owner[:-1])).all(), f"{numbers[real]} for the documents {owner}"
            assert len({*zip(owner.tolist(), numbers[real].tolist(), strict=True)}) == len({*owner.tolist()})

    @law
    @given(sizes=documents, length=lengths, data=st.data())
    def test_a_row_is_a_function_of_its_number(self, sizes: list[int], length: int, data: st.DataObject) -> None:
        """Whatever is read with it, in any order, and repeated."""
        packing = self.packing(Text(sizes), length)
        packed = every_row(packing)
        rows = np.array(data.draw(st.lists(st.integers(0, len(packing) - 1), max_size=9)), dtype=np.int64)
        for name, some in vars(packing.rows(rows)).items():
            every = getattr(packed, name)
            assert (some is None and every is None) or np.array_equal(some, every[rows]), name
        again = every_row(self.packing(Text(sizes), length))
        assert np.array_equal(again.tokens, packed.tokens), "the same text is packed otherwise"

    @law
    @given(sizes=documents, length=lengths)
    def test_lengths(self, sizes: list[int], length: int) -> None:
        """The optional `lengths` agrees with the rows."""
        packing = self.packing(Text(sizes), length)
        if not hasattr(packing, "lengths"):
            pytest.skip("this packing does not state the lengths of its rows")
        expected = every_row(packing).attention_mask.sum(1).tolist()
        assert packing.lengths(np.arange(len(packing))).tolist() == expected

    @law
    @given(sizes=documents, length=lengths)
    def test_source_document_ids(self, sizes: list[int], length: int) -> None:
        """The optional `source_document_ids` has the document of every token of the text."""
        text = Text(sizes)
        packing = self.packing(text, length)
        if not hasattr(packing, "source_document_ids"):
            pytest.skip("this packing does not tell the documents of its rows")
        rows = np.arange(len(packing))
        ids, tokens = packing.source_document_ids(rows), every_row(packing).tokens
        assert ids.shape == tokens.shape
        assert ids.dtype == np.int64
        of_text = tokens >= ORDINARY
        assert (ids[of_text] == text.document(tokens[of_text])).all()
        assert np.array_equal(packing.source_document_ids(rows[::-1]), ids[::-1]), (
            "it depends on the rows that are read with it"
        )

    @settings(law, max_examples=20)
    @given(sizes=documents, size=st.integers(1, 9), seed=st.integers(0, 2**40), world=st.integers(1, 5))
    def test_batches(self, sizes: list[int], size: int, seed: int, world: int) -> None:
        """Each epoch has every row once; ranks of any number together have the global batch; a step is repeatable."""
        rows = Rows(self.packing(Text(sizes), 12))
        whole = every_row(rows.packing)
        steps = [rows.training_batch(seed, step, size, CPU) for step in range(-(-2 * len(rows) // size))]
        read = torch.cat([batch.tokens for batch in steps]).tolist()
        for epoch in range(2):
            part = read[epoch * len(rows) : (epoch + 1) * len(rows)]
            assert sorted(part) == sorted(whole.tokens.tolist())
        cuts = [rank * size // world for rank in range(world + 1)]
        parts = [slice(a, b) for a, b in pairwise(cuts)]
        for step in (0, len(steps) - 1):
            ranks = [rows.training_batch(seed, step, size, CPU, part=part) for part in parts]
            for name in ("tokens", "attention_mask", "segments", "example_ids", "attention_document_ids"):
                expected = getattr(steps[step], name)
                if expected is None:
                    assert all(getattr(rank, name) is None for rank in ranks)
                    continue
                assert torch.equal(torch.cat([getattr(rank, name) for rank in ranks]), expected), name


def every_row(packing: Packing) -> Packed:
    return packing.rows(np.arange(len(packing)))
