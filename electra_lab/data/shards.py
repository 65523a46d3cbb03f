"""Shards: the tokens of one piece of the training text, written by the process that encodes it.

    train-00000.bin  train-00000.lengths.npy  train-00000.words.npy  train-00000.seen.npy  train-00000.json

The .bin holds token ids with [SEP] after every document, .lengths.npy the length of each document, [SEP] included,
.words.npy its number of words, separated by white space.
While a store is built, .seal.json has the checksums of these files and of the tokenizer: a shard is complete if they
agree.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from electra_lab.data.encoding import encode
from electra_lab.data.overlap import HeldOutRuns, without_overlap
from electra_lab.data.raw_documents import read_piece
from electra_lab.storage.files import damage, load_tokenizer, new_file, read_as, seal, sha256, write_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PLAN, TOKENIZER, RAW = "plan.json", "tokenizer.json", "spool"


class Plan(BaseModel):
    """Settings for every process that encodes a shard."""

    dtype: str
    separator: int
    overlap: float


class Shard(BaseModel):
    """The account of a shard."""

    documents: int
    tokens: int
    characters: int
    visible: int | None = None  # characters that are not white space
    unknown: float | None = None  # those of them that the tokenizer does not know
    overlapping: int = 0  # documents left out, as they share too much with held-out text
    sufficient: float | None = None  # the smallest data.overlap, in hundredths, that would leave none out
    empty: int = 0  # documents without tokens
    sha256: dict[str, str] = {}
    bytes: dict[str, int] = {}


def encode_shard(place: Path, name: str) -> None:
    """Encode a piece of the training text, unless it is complete. The command of a launcher: see below."""
    if is_complete(place, name):
        return
    plan, held_out = read_as(Plan, place / PLAN), HeldOutRuns.load(place)
    texts = read_piece(place / RAW, "train", int(name.removeprefix("train-")))
    file = place / TOKENIZER
    encoded = encode_texts(_tokenizer(file, file.stat().st_mtime_ns), texts, plan)
    keep, seen, sufficient = encoded.without_overlap(held_out, plan.overlap)
    with new_file(place / f"{name}.seen.npy", "wb") as stream:
        np.save(stream, np.unique(seen))
    account = write_shard(place, name, encoded, keep, plan, sufficient)
    write_text(place / f"{name}.json", account.model_dump_json(indent=1))
    seal(place, *_sealed(name))


def is_complete(place: Path, name: str) -> bool:
    """Return True if a shard is complete and undamaged, and was encoded by the present tokenizer."""
    return damage(place, *_sealed(name)) is None


def _sealed(name: str) -> tuple[list[str], str]:
    """Return the sealed files, and the file with their checksums."""
    files = [f"{name}.{ending}" for ending in ("bin", "lengths.npy", "words.npy", "seen.npy", "json")]
    return [TOKENIZER, *files], f"{name}.seal.json"


@dataclass(frozen=True)
class Texts:
    """The concatenated tokens of documents, with the numbers of tokens, characters and words of each document.

    unknown  number of characters that the tokenizer does not know
    visible  number of characters that are not white space
    """

    tokens: NDArray[Any]
    lengths: NDArray[np.int64]
    unknown: NDArray[np.float64]
    visible: NDArray[np.int64]
    characters: NDArray[np.int64]
    words: NDArray[np.int64]

    def without_overlap(
        self, runs: HeldOutRuns | None, most: float
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64], float]:
        """Return True for documents with tokens that share at most the part `most` of their runs with held-out text.

        Also return the runs that they share, as indices of `runs.hashes`, and the smallest `most` that suffices
        for all documents with tokens.
        """
        full = self.lengths > 0
        if runs is None:
            return full, np.zeros(0, np.int64), 0.0
        keep = full.copy()
        keep[full], seen, sufficient = without_overlap(self.tokens, self.lengths[full], runs, most)
        return keep, seen, sufficient


def write_shard(place: Path, name: str, texts: Texts, keep: NDArray[np.bool_], plan: Plan, sufficient: float) -> Shard:
    """Write the documents to keep, each followed by a separator; return the account of the shard."""
    tokens, lengths = texts.tokens[np.repeat(keep, texts.lengths)], texts.lengths[keep]
    stream, full = np.insert(tokens, np.cumsum(lengths), plan.separator), texts.lengths > 0
    names = f"{name}.bin", f"{name}.lengths.npy", f"{name}.words.npy"
    with new_file(place / names[0], "wb") as out:
        stream.tofile(out)
    with new_file(place / names[1], "wb") as out:
        np.save(out, (lengths + 1).astype(np.uint32))
    with new_file(place / names[2], "wb") as out:
        np.save(out, texts.words[keep].astype(np.uint32))
    return Shard(
        documents=len(lengths),
        tokens=len(stream),
        characters=int(texts.characters[keep].sum()),
        visible=int(texts.visible[keep].sum()),
        unknown=float(texts.unknown[keep].sum()),
        overlapping=int((full & ~keep).sum()),
        sufficient=sufficient,
        empty=int((~full).sum()),
        sha256={file: sha256(place / file) for file in names},
        bytes={file: os.path.getsize(place / file) for file in names},
    )


def encode_texts(tokenizer: Tokenizer, documents: list[str], plan: Plan) -> Texts:
    characters = np.array([len(text) for text in documents], np.int64)
    words = np.array([len(text.split()) for text in documents], np.int64)
    visible = np.array([len("".join(text.split())) for text in documents], np.int64)
    return Texts(*encode(tokenizer, documents, plan.dtype), visible, characters, words)


@lru_cache(maxsize=1)
def _tokenizer(file: Path, _written: int) -> Tokenizer:
    return load_tokenizer(file)


if __name__ == "__main__":
    encode_shard(Path(sys.argv[1]), sys.argv[2])
