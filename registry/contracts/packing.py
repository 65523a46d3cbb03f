"""Packings: from documents to rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    IndexArray = NDArray[np.int64]


class Tokens(Protocol):
    """The tokens of a split: consecutive documents, each followed by [SEP]."""

    def __len__(self) -> int:
        """Return the number of tokens."""

    @property
    def lengths(self) -> NDArray[np.uint32]:
        """The number of tokens of each document, [SEP] included: at least 2."""

    def read(self, places: IndexArray) -> IndexArray:
        """Return the tokens at the given places, in the shape of `places`."""


@dataclass(frozen=True)
class Packed:
    """Rows of tokens; numpy arrays."""

    tokens: IndexArray  # [B T]
    attention_mask: NDArray[np.bool_]  # [B T], True at real tokens
    segments: IndexArray  # [B T], 0 or 1
    # [B T], a number for each document of a row, -1 at padding; only if attention must separate documents
    documents: IndexArray | None = None


class Packing(Protocol):
    """A mapping of documents to rows of a fixed length. Registered as a class:

        __init__(self, tokens, length, vocabulary, /, *, <options>)

    `tokens` is a Tokens, `length` the number of tokens in a row, `vocabulary` a Vocabulary. Every token of every
    document is in exactly one row, in order; [CLS] and [SEP] may be added.

    lengths(rows)  optional: the number of real tokens in each row, which come first, without reading any; for packings
                   with rows that are not full, so that rows of similar lengths can be grouped
    source_document_ids(rows)  optional: the number of the document that each position is from, Int[B T], undefined at
                   positions that the packing added. Only evaluation reads it, for intervals over documents; without it
                   they are over rows

    `@packings.register(name, separates_documents=True)` declares that rows carry `documents`, so that the networks must
    separate them; it may be a function of the options. `crosses_documents` declares that a row may hold more than one.
    """

    def __len__(self) -> int:
        """Return the number of rows."""

    def rows(self, rows: IndexArray, /) -> Packed:
        """Return the rows of the given numbers, a function of the numbers alone. Called for every batch."""

    def __init__(self, *args: Any, **options: Any) -> None: ...
