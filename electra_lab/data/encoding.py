"""From text to token ids, by the tokenizers library."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from electra_lab.data.vocabulary import unknown_id
from electra_lab.storage.files import tokenizer_failures

if TYPE_CHECKING:
    from tokenizers import Tokenizer

AT_ONCE = 1 << 20  # characters encoded at a time

SAMPLE = 1 << 17  # characters of these in which the unknown ones are counted

# The concatenated tokens of documents; of each document, their number and that of its unknown characters.
Encoded = tuple[NDArray[Any], NDArray[np.int64], NDArray[np.float64]]


@tokenizer_failures()
def encode(tokenizer: Tokenizer, documents: Sequence[str], dtype: str) -> Encoded:
    """Encode documents. The name of a special token in a document is text, see `SpecialNames`. Raises DataError."""
    special = SpecialNames(tokenizer)
    tokens: list[NDArray[Any]] = [np.zeros(0, dtype)]
    lengths, unknown = list[int](), list[float]()
    for texts in _chunks(documents):
        first = len(tokens)
        for text, encoding in zip(texts, tokenizer.encode_batch_fast(texts, add_special_tokens=False), strict=True):
            ids = encoding.ids
            if special.are_in(text, ids):
                ids = tokenizer.encode(special.spelled(text)[0], add_special_tokens=False).ids
            lengths.append(len(ids))
            tokens.append(np.array(ids, dtype))
        unknown += _unknown(tokenizer, texts, tokens[first:])
    return np.concatenate(tokens), np.array(lengths, np.int64), np.array(unknown)


def _unknown(tokenizer: Tokenizer, texts: Sequence[str], tokens: Sequence[NDArray[Any]]) -> list[float]:
    """Return the number of unknown characters of each text: of many texts, from some of them."""
    id = unknown_id(tokenizer)
    numbers = [0 if id is None else int((ids == id).sum()) for ids in tokens]
    affected = [place for place, number in enumerate(numbers) if number]
    sample = affected[:: 1 + sum(len(texts[place]) for place in affected) // SAMPLE]
    characters = 0
    for place in sample:
        encoding = tokenizer.encode(texts[place], add_special_tokens=False)
        characters += unknown_characters(texts[place], encoding.ids, encoding.offsets, id)
    each = characters / max(1, sum(numbers[place] for place in sample))
    return [number * each for number in numbers]


def unknown_characters(text: str, ids: Sequence[int], offsets: Sequence[tuple[int, int]], unknown: int | None) -> int:
    """Return how many characters of a text, white space left out, are read as the unknown token."""
    places = {place for id, place in zip(ids, offsets, strict=True) if id == unknown}
    return sum(len("".join(text[start:end].split())) for start, end in places)


class SpecialNames:
    """The names of a tokenizer's special tokens as text in documents.

    Some models, such as Unigram, have the special tokens among their pieces and would encode the text "[MASK]" as the
    token. So a space is inserted into such a name.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder().items()
        self._special = {id: token.content for id, token in added if token.special}
        self.names = re.compile("|".join(map(re.escape, self._special.values())))

    def are_in(self, text: str, ids: Sequence[int]) -> bool:
        """Return whether a part of a text with these tokens may have been encoded as a special token.

        An unknown token alone does not count: the text must have the name of that token.
        """
        return any(self._special[id] in text for id in self._special.keys() & ids)

    def spelled(self, text: str) -> tuple[str, list[int]]:
        """Return the text with a space in each name, and the places of these spaces."""
        spaces = [match.start() + 1 + number for number, match in enumerate(self.names.finditer(text))]
        return self.names.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text), spaces


def _chunks(documents: Sequence[str]) -> Iterator[list[str]]:
    begin = size = 0
    for end, document in enumerate(documents, start=1):
        size += len(document)
        if size >= AT_ONCE or end == len(documents):
            yield [*documents[begin:end]]
            begin, size = end, 0
