"""The split of a document: a function of its key, independent of other documents, files and workers; or its place."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from registry import Corpus, Document, Skipped, Split
from registry.errors import DataError

HELD_OUT: tuple[Split, ...] = ("validation", "test")
SPLITS: tuple[Split, ...] = ("train", *HELD_OUT)


class Unsplittable(DataError):
    """The documents cannot be divided as the experiment says.

    key  the responsible key of the experiment
    """

    def __init__(self, reason: str, key: tuple[str, ...] = ("corpus",)) -> None:
        super().__init__(reason)
        self.key = key


def number_of(key: bytes) -> int:
    """Return a number below 2**64, evenly spread over the keys."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")


def split_of(key: bytes, held_out: float) -> Split:
    """Return the split of a key.

    held_out  share of the keys that are not trained on, half of them for validation and half for the test
    """
    place = number_of(key) / 2**64
    if place >= held_out:
        return "train"
    return "test" if place >= held_out / 2 else "validation"


def by_order(
    corpus: Corpus, held_out: float, progress: Callable[[int], None] = lambda _: None
) -> Iterator[Document | Skipped]:
    """Yield the documents of a corpus, which is read twice, with splits by their order.

    The last documents are for the test, and those before them for validation: half of the share `held_out` each.
    Documents with the same key that follow one another stay together. Raises Unsplittable for documents with a split or
    a repetition, and if others with the same key are on both sides of a boundary.

    progress  callback with the number of characters that were read the first time
    """
    # Count the documents.
    number = characters = 0
    for item in corpus:
        if not isinstance(item, Skipped):
            number += 1
            characters += len(item if isinstance(item, str) else item.text)
            progress(characters)
    half = max(1, round(number * held_out / 2))
    if number <= 2 * half:
        raise Unsplittable(f"{number} documents are too few to hold out {held_out:g} of them.", ("data", "held_out"))
    # Assign the splits.
    split: Split = "train"
    place, previous = 0, None
    split_of_key: dict[int, Split] = {}  # the split of each key
    for item in corpus:
        if isinstance(item, Skipped):
            yield item
            continue
        document = Document(item) if isinstance(item, str) else item
        if document.split or document.again:
            reason = "has its own splits" if document.split else "repeats documents"
            raise Unsplittable(f"by_order: the corpus {reason}. Remove this key.", ("data", "split"))
        continues = document.key is not None and document.key == previous
        if place >= number - 2 * half and not continues:
            split = "test" if place >= number - half else "validation"
        if document.key is not None:
            key = number_of(document.key.encode("utf-8", "surrogatepass"))
            if split_of_key.setdefault(key, split) != split:
                both = f"documents with the key {document.key!r:.80} are in {split_of_key[key]} and in {split}"
                raise Unsplittable(
                    f"by_order: {both}. Remove the corpus's key or group, or this key.", ("data", "split")
                )
        yield replace(document, split=split)
        place, previous = place + 1, document.key
