"""The split of a document: a function of its key alone, so that other documents, files and workers move nothing."""

from __future__ import annotations

import hashlib

from registry import Document, Split

HELD_OUT: tuple[Split, ...] = ("validation", "test")
SPLITS: tuple[Split, ...] = ("train", *HELD_OUT)


def number_of(key: str) -> int:
    """Return a number below 2**64, evenly spread over the keys."""
    return number_of_bytes(key.encode("utf-8", "surrogatepass"))


def number_of_bytes(key: bytes) -> int:
    """Return the number of a key in UTF-8."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")


def split_of(document: Document, held_out: float) -> Split:
    """Return the split that a document brings, or else the one of its key.

    held_out  share of the keys that are not trained on, half of them for validation and half for the test
    """
    if document.split is not None:
        return document.split
    return split_at(number_of(document.text if document.key is None else document.key), held_out)


def split_at(number: int, held_out: float) -> Split:
    """Return the split of a key by its number."""
    place = number / 2**64
    return "train" if place >= held_out else HELD_OUT[place >= held_out / 2]
