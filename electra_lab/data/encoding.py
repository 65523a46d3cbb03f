"""From text to token ids, by the tokenizers library."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from electra_lab.storage.files import tokenizer_failures

if TYPE_CHECKING:
    from tokenizers import Tokenizer

AT_ONCE = 1 << 20  # characters encoded at a time

Encoded = tuple[NDArray[Any], NDArray[np.int64]]  # concatenated tokens of documents; the length of each document


@tokenizer_failures()
def encode(tokenizer: Tokenizer, documents: Sequence[str], dtype: str) -> Encoded:
    """Encode documents. The name of a special token in a document is text, see `SpecialNames`. Raises DataError."""
    special = SpecialNames(tokenizer)
    tokens: list[NDArray[Any]] = [np.zeros(0, dtype)]
    lengths: list[int] = []
    for texts in _chunks(documents):
        for text, encoding in zip(texts, tokenizer.encode_batch_fast(texts, add_special_tokens=False), strict=True):
            ids = encoding.ids
            if special.are_in(text, ids):
                ids = tokenizer.encode(special.spelled(text)[0], add_special_tokens=False).ids
            lengths.append(len(ids))
            tokens.append(np.array(ids, dtype))
    return np.concatenate(tokens), np.array(lengths, np.int64)


class SpecialNames:
    """The names of a tokenizer's special tokens as text in documents.

    Some models, such as Unigram, have the special tokens among their pieces and would encode the text "[MASK]" as the
    token. So a space is inserted into such a name.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder().items()
        self._special = {id: token.content for id, token in added if token.special}
        self._names = re.compile("|".join(map(re.escape, self._special.values())))

    def are_in(self, text: str, ids: Sequence[int]) -> bool:
        """Return whether a part of a text with these tokens may have been encoded as a special token.

        An unknown token alone does not count: the text must have the name of that token.
        """
        return any(self._special[id] in text for id in self._special.keys() & ids)

    def spelled(self, text: str) -> tuple[str, list[int]]:
        """Return the text with a space in each name, and the places of these spaces."""
        spaces = [match.start() + 1 + number for number, match in enumerate(self._names.finditer(text))]
        return self._names.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text), spaces


def _chunks(documents: Sequence[str]) -> Iterator[list[str]]:
    begin = size = 0
    for end, document in enumerate(documents, start=1):
        size += len(document)
        if size >= AT_ONCE or end == len(documents):
            yield [*documents[begin:end]]
            begin, size = end, 0
