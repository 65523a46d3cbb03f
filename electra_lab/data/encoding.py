"""From text to token ids, by the tokenizers library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from electra_lab.storage.files import read_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_BYTES = 1 << 29  # of tokenizer.json
AT_ONCE = 1 << 20  # characters encoded at a time

Encoded = tuple[NDArray[Any], NDArray[np.int64]]  # tokens of documents one after the other; how many each has


def load_tokenizer(file: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(read_text(file, MOST_BYTES))
    tokenizer.encode_special_tokens = True  # "[MASK]" written in a document is text, not the mask token
    return tokenizer


def encode(tokenizer: Tokenizer, documents: Sequence[str], dtype: str) -> Encoded:
    """Encode documents by the tokenizers library.

    Some models, such as Unigram, have the special tokens among their pieces, and would take one that is written for
    the token: a space is put into such a name first.
    """
    special = {id: token.content for id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    tokens: list[NDArray[Any]] = [np.zeros(0, dtype)]
    lengths: list[int] = []
    for texts in _chunks(documents):
        for text, encoding in zip(texts, tokenizer.encode_batch_fast(texts, add_special_tokens=False), strict=True):
            ids = encoding.ids
            if any(name in text for name in special.values()) and not special.keys().isdisjoint(ids):
                for name in special.values():
                    text = text.replace(name, f"{name[0]} {name[1:]}")
                ids = tokenizer.encode(text, add_special_tokens=False).ids
            lengths.append(len(ids))
            tokens.append(np.array(ids, dtype))
    return np.concatenate(tokens), np.array(lengths, np.int64)


def _chunks(documents: Sequence[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    size = 0
    for document in documents:
        chunk.append(document)
        size += len(document)
        if size >= AT_ONCE:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
