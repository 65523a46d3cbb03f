"""The laws of packings find mistakes: each one by the law for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from electra_lab.packings.contiguous import Contiguous
from electra_lab.packings.documents import Documents
from electra_lab.testing import MASK, PAD, SEP, PackingContract
from registry import Packed, Tokens, Vocabulary, packings

Change = Callable[[Packed, np.ndarray], Packed]


class Lawful(PackingContract):
    name = "mine"


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with packings.isolated():
        yield


def suite(base: type, change: Change | None = None, **declared: bool) -> PackingContract:
    """Return the suite of a packing whose rows are changed."""

    class Mine(base):  # type: ignore[misc]
        """Changed."""

        def rows(self, rows: np.ndarray, /) -> Packed:
            packed = super().rows(rows)
            return change(packed, rows) if change else packed

    packings.register("mine", **declared)(Mine)
    return Lawful()


def swapped(packed: Packed, rows: np.ndarray) -> Packed:
    tokens = packed.tokens.copy()
    tokens[:, [1, 2]] = tokens[:, [2, 1]]
    return replace(packed, tokens=tokens)


ONCE = "every_token_comes_once_and_in_order"
MISTAKES: dict[str, tuple[str, type, Change]] = {
    "order": (ONCE, Documents, swapped),
    "lost": (ONCE, Documents, lambda p, rows: replace(p, tokens=np.where(p.tokens == 9, PAD, p.tokens))),
    "no end": (ONCE, Documents, lambda p, rows: replace(p, tokens=np.where(p.tokens == SEP, MASK, p.tokens))),
    "mask": ("form_of_rows", Documents, lambda p, rows: replace(p, attention_mask=p.tokens >= PAD)),
    "segments": ("form_of_rows", Documents, lambda p, rows: replace(p, segments=p.segments + 1)),
    "types": ("form_of_rows", Documents, lambda p, rows: replace(p, tokens=p.tokens.astype(np.int32))),
    "crosses": ("no_row_crosses_a_boundary_that_is_forbidden", Contiguous, lambda p, rows: p),
    "by batch": ("a_row_is_a_function_of_its_number", Documents,
                 lambda p, rows: replace(p, segments=p.segments + (p.attention_mask & (len(rows) == 1)))),
    "documents": ("documents_to_separate", Documents, lambda p, rows: replace(p, documents=p.segments)),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str) -> None:
    law, base, change = MISTAKES[mistake]
    made = suite(base, change)
    with pytest.raises(AssertionError):
        getattr(made, f"test_{law}")()


@pytest.mark.parametrize("off", ["none", "row", "padding"])
def test_wrong_documents_are_found(off: str) -> None:
    def change(packed: Packed, rows: np.ndarray) -> Packed:
        assert packed.documents is not None
        wrong = {"none": None, "row": packed.documents * 0, "padding": np.maximum(packed.documents, 0)}
        return replace(packed, documents=wrong[off])

    class Within(Contiguous):
        def __init__(self, tokens: Tokens, length: int, vocabulary: Vocabulary, /) -> None:
            super().__init__(tokens, length, vocabulary, attention="within_documents")

    made = suite(Within, change, crosses_documents=True, separates_documents=True)
    with pytest.raises(AssertionError):
        made.test_documents_to_separate()


WRONG_SOURCES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "by row": lambda sources, rows: np.zeros_like(sources) + rows[:, None],
    "by place": lambda sources, rows: np.where(np.arange(len(rows))[:, None] == 0, 0, sources),
    "cut": lambda sources, rows: sources[:, 1:],
    "type": lambda sources, rows: sources.astype(np.int32),
}


@pytest.mark.parametrize("wrong", WRONG_SOURCES.values(), ids=WRONG_SOURCES)
@pytest.mark.parametrize("base", [Documents, Contiguous])
def test_wrong_sources_are_found(base: type, wrong: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
    class Wrong(base):  # type: ignore[misc]
        def source_document_ids(self, rows: np.ndarray, /) -> np.ndarray:
            return wrong(super().source_document_ids(rows), rows)

    made = suite(Wrong)
    with pytest.raises(AssertionError):
        made.test_source_document_ids()


def test_wrong_lengths_are_found() -> None:
    class Long(Documents):
        def lengths(self, rows: np.ndarray) -> np.ndarray:
            return super().lengths(rows) + 1

    with pytest.raises(AssertionError):
        suite(Long).test_lengths()
