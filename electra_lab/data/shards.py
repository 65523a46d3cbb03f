"""Shards: the tokens of one piece of the training text, written whole by whichever process encodes it.

    train-00000.bin  train-00000.lengths.npy  train-00000.seen.npy  train-00000.json

The .bin holds token ids with [SEP] after every document, .lengths.npy the length of each document, [SEP] included. The
.json comes last, so a shard that has one is complete.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from electra_lab.data.engine import Encoded, Fast, encode, load_tokenizer
from electra_lab.data.overlap import Known, without_overlap
from electra_lab.data.spool import read_piece
from electra_lab.storage.files import new_file, read_as, sha256, write_text
from registry import Outcome

PLAN, TOKENIZER, SPOOL = "plan.json", "tokenizer.json", "spool"


class Plan(BaseModel):
    """What every process that encodes a shard must know."""

    dtype: str
    separator: int
    overlap: float
    engine: str = "auto"


class Shard(BaseModel):
    """The account of a shard."""

    documents: int
    tokens: int
    characters: int
    overlapping: int = 0  # documents left out, as they share too much with held-out text
    empty: int = 0  # documents without a token
    engine: str = "tokenizers"
    fell_back: bool = False  # tokie gave other ids on a sample
    sha256: dict[str, str] = {}
    bytes: dict[str, int] = {}


def encode_shard(folder: str, name: str) -> Outcome:
    """Encode a piece of the training text, unless that has been done. The work of a launcher."""
    place = Path(folder)
    if not (place / f"{name}.json").exists():
        _encode_shard(place, name)
    return Outcome("done")


def _encode_shard(place: Path, name: str) -> None:
    plan, known = read_as(Plan, place / PLAN), Known.load(place)
    texts = read_piece(place / SPOOL, "train", int(name.removeprefix("train-")))
    (tokens, lengths), engine = encode_by(
        _engine(place / TOKENIZER, os.stat(place / TOKENIZER).st_mtime_ns), texts, plan
    )
    characters = np.array([len(text) for text in texts])
    full = lengths > 0
    keep, seen = np.array(full), np.zeros(0, np.int64)
    keep[full], seen = without_overlap(tokens, lengths[full], known, plan.overlap)
    written = write_shard(place, name, tokens[np.repeat(keep, lengths)], lengths[keep], plan)
    with new_file(place / f"{name}.seen.npy", "wb") as stream:
        np.save(stream, np.unique(seen))
    account = Shard(
        documents=int(keep.sum()), tokens=int(lengths[keep].sum() + keep.sum()), characters=int(characters[keep].sum()),
        overlapping=int((full & ~keep).sum()), empty=int((~full).sum()),
        **engine, **written,
    )  # fmt: skip
    write_text(place / f"{name}.json", account.model_dump_json(indent=1))


def write_shard(place: Path, name: str, tokens: NDArray[Any], lengths: NDArray[np.int64], plan: Plan) -> dict[str, Any]:
    """Write the tokens and lengths of documents, with a separator after each; return the files' hashes and sizes."""
    stream = np.insert(tokens, np.cumsum(lengths), plan.separator)
    written: dict[str, Any] = {"sha256": {}, "bytes": {}}
    for file, save in ((f"{name}.bin", stream.tofile), (f"{name}.lengths.npy", None)):
        with new_file(place / file, "wb") as out:
            save(out) if save else np.save(out, (lengths + 1).astype(np.uint32))
        written["sha256"][file], written["bytes"][file] = sha256(place / file), os.path.getsize(place / file)
    return written


def encode_by(fast: Fast, texts: list[str], plan: Plan) -> tuple[Encoded, dict[str, Any]]:
    """Encode texts, by tokie if it agrees with the tokenizers library; return the tokens, and what a Shard says."""
    tried = plan.engine == "auto" and fast.usable
    if tried and fast.agrees(texts):
        return fast.encode(texts, plan.dtype), {"engine": "tokie"}
    return encode(fast.exact, texts, plan.dtype), {"engine": "tokenizers", "fell_back": tried}


@lru_cache(maxsize=1)
def _engine(file: Path, _written: int) -> Fast:
    return Fast(file, load_tokenizer(file))
