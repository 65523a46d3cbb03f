"""The split of a document: a function of its key, independent of other documents, files and workers."""

from __future__ import annotations

import hashlib

from registry import Split

HELD_OUT: tuple[Split, ...] = ("validation", "test")
SPLITS: tuple[Split, ...] = ("train", *HELD_OUT)


def number_of(key: bytes) -> int:
    """Return a number below 2**64, evenly spread over the keys."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")


def split_of(key: bytes, held_out: float) -> Split:
    """Return the split of a key.

    held_out  share of the keys that are not trained on, half of them for validation and half for the test
    """
    place = number_of(key) / 2**64
    return "train" if place >= held_out else HELD_OUT[place >= held_out / 2]
