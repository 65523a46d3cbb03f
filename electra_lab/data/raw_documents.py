"""The documents of a corpus on disk, split: read once, then encoded in pieces by any number of processes.

    spool/  train-00000.txt  train-00000.npy  train-00001.txt ...  validation-00000.txt ...  spool.json

Each .txt holds concatenated documents in UTF-8, and its .npy their lengths in bytes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel

from electra_lab.data.splits import HELD_OUT, SPLITS, Unsplittable, by_order, number_of, split_of
from electra_lab.storage.files import new_file, read_as, write_text
from registry import Corpus, Document, Skipped, Split
from registry.contracts.data import Unit, pieces
from registry.errors import DataError

# Bytes of text in a piece, and thus a shard: small at first, so that a small corpus is shared equally by all cores.
LEAST, MOST = 1 << 21, 1 << 24
SHARE = 32  # a piece has this part of the bytes of all earlier pieces, within these bounds
MOST_HELD_OUT = 20_000_000  # characters in validation and in the test each
SHOWN = 5  # files, and skipped pieces, that are named
MOST_KEYS = 1_000_000  # of which the numbers are in memory
FEW = 100  # files that are named, and keys that are counted: fewer may leave a split empty

Order = Literal["by_order"]
Progress = Callable[[str, int, int | None], None]  # the phase, the amount done, and the total or None


class Contents(BaseModel):
    """spool.json, written last."""

    pieces: dict[Split, int]
    documents: dict[Split, int]
    characters: dict[Split, int]
    beyond_limit: int = 0  # held-out documents above MOST_HELD_OUT, which are not used
    skipped: int = 0
    examples: list[str] = []  # of skipped pieces
    lost: dict[Unit, int] = {}  # amounts skipped
    removed: int = 0  # documents of which the corpus removed a part
    keyed: int = 0  # documents with a key
    keys: int = 0  # that differ, counted up to MOST_KEYS
    records: int = 0  # of which documents are parts
    files: list[str] = []  # their names, if there are at most FEW


def read_contents(folder: Path) -> Contents:
    return read_as(Contents, folder / "spool.json")


def write_documents(
    corpus: Corpus, fingerprint: str, held_out: float, folder: Path, progress: Progress, order: Order | None = None
) -> Contents:
    """Read a corpus into an empty folder. Raises DataError, also if its fingerprint has changed.

    order  rule of the splits; None for those of the documents' keys
    """
    writers = {split: _Writer(folder, split) for split in SPLITS}
    held = {split: _Smallest(MOST_HELD_OUT) for split in HELD_OUT}
    skipped, read, removed, keyed, records, has_splits = 0, 0, 0, 0, 0, False
    lost = Counter[Unit]()
    examples: list[str] = []
    keys = dict[int, str]()  # the beginnings of the first few, by their numbers
    differing = set[int]()  # the numbers of the keys that documents have
    # Training text is written as it comes; held-out text waits for its limit.
    counting, reading = _Shown("counting", progress), _Shown("reading", progress)
    for item in by_order(corpus, held_out, counting) if order == "by_order" else corpus:
        if isinstance(item, Skipped):
            skipped += 1
            lost[item.unit] += item.number
            if skipped <= SHOWN:
                examples.append(f"{item.place}: {item.reason}")
            continue
        document = Document(item) if isinstance(item, str) else item
        has_splits |= document.split is not None
        if len(keys) < FEW:
            key = document.text if document.key is None else document.key
            keys.setdefault(number_of(key.encode("utf-8", "surrogatepass")), key[:40])
        if document.key is not None and len(differing) < MOST_KEYS:
            differing.add(number_of(document.key.encode("utf-8", "surrogatepass")))
        records += document.begins and not document.again
        for data, characters, split in _parts(document, held_out):
            read += characters
            if document.again and split != "train":
                continue
            (writers if split == "train" else held)[split].add(data, characters)
            removed += document.removed
            keyed += document.key is not None
        reading(read)
    if corpus.fingerprint() != fingerprint:
        raise DataError("the corpus changed while it was read. Start again when it no longer changes.")
    # Held-out text, once its limit is reached.
    for split, smallest in held.items():
        for data, characters in smallest.documents():
            writers[split].add(data, characters)
    for writer in writers.values():
        writer.close()
    # The account, and refusals that depend on it.
    contents = Contents(
        pieces={split: writer.pieces for split, writer in writers.items()},
        documents={split: writer.documents for split, writer in writers.items()},
        characters={split: writer.characters for split, writer in writers.items()},
        beyond_limit=sum(smallest.left_out for smallest in held.values()),
        skipped=skipped,
        lost=lost,
        examples=examples,
        removed=removed,
        keyed=keyed,
        keys=len(differing),
        records=records,
        files=names_of(corpus),
    )
    rule = "data.split by_order keeps neighbours with one key together" if order else "the corpus has its own splits"
    _refuse_empty(corpus, contents, held_out, rule if has_splits else None, [*keys.values()])
    write_text(folder / "spool.json", contents.model_dump_json(indent=1))
    return contents


def files_of(corpus: Any) -> tuple[list[Path], list[Path]]:
    """Return the files that a corpus reads and those that it ignores, if it reports them."""
    return corpus.files() if callable(getattr(corpus, "files", None)) else ([], [])


def names_of(corpus: Corpus) -> list[str]:
    """Return the names of the files that a corpus reads, if it reports at most FEW."""
    files, _ = files_of(corpus)
    return [file.name for file in files] if len(files) <= FEW else []


class _Shown:
    """Passes on every mebi-th character of a phase."""

    def __init__(self, phase: str, progress: Progress) -> None:
        self.phase, self.progress, self.shown = phase, progress, 0

    def __call__(self, characters: int) -> None:
        if characters - self.shown >= 1 << 20:
            self.shown = characters
            self.progress(self.phase, characters, None)


def held_out_texts(corpus: Corpus, held_out: float, order: Order | None = None) -> Iterator[str]:
    """Yield the held-out documents as in a store, but without its limits."""
    for item in by_order(corpus, held_out) if order == "by_order" else corpus:
        document = Document(item) if isinstance(item, str) else item
        if isinstance(document, Skipped) or document.again:
            continue
        yield from (data.decode() for data, _, split in _parts(document, held_out) if split != "train")


def _parts(document: Document, held_out: float) -> Iterator[tuple[bytes, int, Split]]:
    """Yield a document in UTF-8, cut if it is too long; each part with its number of characters and its split."""
    key = None if document.key is None else document.key.encode("utf-8", "surrogatepass")
    for text in pieces(document.text):
        data = _utf8(text)
        yield data, len(text), document.split or split_of(data if key is None else key, held_out)


def read_piece(folder: Path, split: Split, piece: int) -> list[str]:
    """Return the documents of a piece."""
    data = (folder / f"{_name(split, piece)}.txt").read_bytes()
    ends = np.cumsum(np.load(folder / f"{_name(split, piece)}.npy")).tolist()
    return [data[begin:end].decode() for begin, end in zip([0, *ends], ends, strict=False)]


@dataclass(frozen=True)
class Sample:
    """Training documents of about `characters` in total, evenly spread over the split; can be read several times."""

    folder: Path
    contents: Contents
    characters: float
    progress: Progress

    def __iter__(self) -> Iterator[str]:
        share = min(1.0, self.characters / self.contents.characters["train"])
        number = read = 0
        for piece in range(self.contents.pieces["train"]):
            for text in read_piece(self.folder, "train", piece):
                number += 1
                if ceil(number * share) > ceil((number - 1) * share):
                    yield text
                    read += len(text)
            self.progress("training the tokenizer", read, int(share * self.contents.characters["train"]))


class _Writer:
    """Writes the pieces of a split."""

    def __init__(self, folder: Path, split: Split) -> None:
        self.folder, self.split = folder, split
        self.pieces = self.documents = self.characters = 0
        self._texts: list[bytes] = []
        self._bytes = self._written = 0

    def add(self, data: bytes, characters: int) -> None:
        self._texts.append(data)
        self._bytes += len(data)
        self.documents += 1
        self.characters += characters
        if self._bytes >= min(MOST, max(LEAST, self._written // SHARE)):
            self.close()

    def close(self) -> None:
        """Write the documents since the last piece."""
        if self._texts:
            name = _name(self.split, self.pieces)
            with new_file(self.folder / f"{name}.txt", "wb") as stream:
                stream.write(b"".join(self._texts))
            with new_file(self.folder / f"{name}.npy", "wb") as stream:
                np.save(stream, np.array(list(map(len, self._texts)), np.uint32))
            self.pieces += 1
            self._written += self._bytes
            self._texts, self._bytes = [], 0


@dataclass
class _Smallest:
    """The documents with the smallest numbers that have at most `most` characters: the same in any order."""

    most: int
    limit: int = 1 << 64
    characters: int = 0
    left_out: int = 0
    _heap: list[tuple[int, int, bytes, int]] = field(default_factory=list)  # the largest number first

    def add(self, data: bytes, characters: int) -> None:
        number = number_of(data)
        if number >= self.limit:
            self.left_out += 1
            return
        heapq.heappush(self._heap, (-number, -len(self._heap) - self.left_out, data, characters))
        self.characters += characters
        while self.characters > self.most and len(self._heap) > 1:
            number, _, _, characters = heapq.heappop(self._heap)
            self.limit = -number
            self.left_out += 1
            self.characters -= characters

    def documents(self) -> list[tuple[bytes, int]]:
        """Return them in the order in which they were added, with their numbers of characters."""
        return [entry[2:] for entry in sorted(self._heap, key=lambda entry: -entry[1])]


def _utf8(text: str) -> bytes:
    """Return the text in UTF-8; half characters, which JSON may have, become U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _refuse_empty(corpus: Any, contents: Contents, held_out: float, rule: str | None, keys: Sequence[str]) -> None:
    """Raise Unsplittable if a split has no documents.

    rule  description of the rule of the splits, None for the hashes of keys
    keys  first FEW keys
    """
    documents = sum(contents.documents.values())
    if not documents:
        files, _ = files_of(corpus)
        where = f" in {', '.join(map(str, files[:SHOWN]))}{', ...' if len(files) > SHOWN else ''}" if files else ""
        skipped = f" {contents.skipped:,} pieces were skipped, the first: " if contents.skipped else ""
        raise Unsplittable(f"no document has any text{where}.{skipped}{''.join(contents.examples[:1])}")
    for split, count in contents.documents.items():
        if count:
            continue
        if rule:
            raise Unsplittable(f"{rule}, but no documents for {split}.")
        number = len(keys) if len(keys) < FEW else documents
        share = min(0.5, 20 / number)
        can_help = number >= len(SPLITS) and (share < held_out if split == "train" else share > held_out)
        cures = [f"Set it to {share:.1g}"] if can_help else []
        what, cure = f"{documents} documents", "Divide the text into more documents"
        if number < documents:
            what += f", which have {number} {'keys' if number > 1 else 'key'}, such as {keys[0]!r},"
            cure = "Give them more keys, as documents with the same key are in the same split"
        reason = f"with {held_out}, the split {split} is empty: none of {what} fell into it"
        raise Unsplittable(f"{reason}. {'. Or: '.join([*cures, cure])}.", ("data", "held_out"))


def _name(split: Split, piece: int) -> str:
    return f"{split}-{piece:05}"
