"""From text to token ids, by the tokenizers library or, where it gives the same ids, by tokie, which is faster."""

from __future__ import annotations

import json
import re
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
EXCERPTS, EXCERPT = 256, 500  # how many pieces of how many characters are compared, spread over a shard

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


class Fast:
    """tokie (https://pypi.org/project/tokie), a re-implementation of the tokenizers library.

    `usable` is False if it is not installed, or cannot read the tokenizer.
    """

    def __init__(self, file: Path, exact: Tokenizer) -> None:
        self.exact, self.usable = exact, False
        settings = json.loads(file.read_text(encoding="utf-8"))
        self._written = [token["content"] for token in settings["added_tokens"]]  # tokie takes them for special ones
        before = settings["pre_tokenizer"] or {}
        self._unknown = re.compile("")  # finds a character on which the two were not compared
        # tokie does not add the space that ByteLevel may put before a text.
        self._prefix = " " if before.get("type") == "ByteLevel" and before.get("add_prefix_space") else ""
        if '"Lowercase"' in json.dumps(settings["normalizer"]):  # which it leaves out
            return
        try:
            import tokie

            self._tokie: Any = tokie.Tokenizer.from_json(str(file))
            self.usable = True
        except Exception:  # absent, of another system, or a tokenizer that it does not know
            pass

    def agrees(self, documents: Sequence[str]) -> bool:
        """Compare the two on excerpts that are spread over the documents."""
        step = max(1, len(documents) // EXCERPTS)
        excerpts = []
        for number, text in enumerate(documents[::step]):
            begin = number * 7919 % max(1, len(text) - EXCERPT)
            excerpts.append(text[begin : begin + EXCERPT])
        known = "".join(sorted({*map(chr, range(32, 127)), "\n"}.union(*excerpts)))
        self._unknown = re.compile(f"[^{re.escape(known)}]")
        ours, theirs = encode(self.exact, excerpts, "uint32"), self.encode(excerpts, "uint32")
        return all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))

    def encode(self, documents: Sequence[str], dtype: str) -> Encoded:
        """Encode documents.

        Those with a character that was not compared, or in which a special token is written, are left to the library.
        """
        exact = [
            i
            for i, text in enumerate(documents)
            if self._unknown.search(text) or any(token in text for token in self._written)
        ]
        there = set(exact)
        texts = [t if t.startswith(" ") else self._prefix + t for i, t in enumerate(documents) if i not in there]
        ids, lengths = self._tokie.encode_batch_flat(texts, add_special_tokens=False)
        fast = ids.astype(dtype), lengths.astype(np.int64)
        if not exact:
            return fast
        return _merged(fast, encode(self.exact, [documents[i] for i in exact], dtype), exact)


def _merged(most: Encoded, few: Encoded, where: list[int]) -> Encoded:
    """Put the documents of `few` among the others, at the indices `where`."""
    pieces, others = (
        np.split(tokens, np.cumsum(lengths)[:-1]) if len(lengths) else [] for tokens, lengths in (most, few)
    )
    merged = list(pieces)
    for index, piece in zip(where, others, strict=True):
        merged.insert(index, piece)
    return np.concatenate(merged), np.array([len(piece) for piece in merged], np.int64)


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
