"""Overlap of training and held-out documents, by runs of 13 tokens.

Brown et al. (2020, appendix C) remove overlap by 13-grams of words. Tokens are stricter, as 13 tokens are fewer words,
and the rule is the same for languages without spaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from electra_lab.storage.files import new_file

RUN = 13  # tokens; a shorter document is one run
FACTOR = 0x9E3779B97F4A7C15  # odd, so it has an inverse
INVERSE = pow(FACTOR, -1, 1 << 64)
BITS = 16  # of the filter, for each run
AT_ONCE = 1 << 18  # tokens whose runs are computed at a time; each needs about 100 bytes

FILES = ("known.npy", "counted.npy", "filter.npy")

Hashes = NDArray[np.uint64]


def runs(tokens: NDArray[Any], lengths: NDArray[Any]) -> tuple[Hashes, NDArray[np.int64]]:
    """Return a 64-bit hash of each run within a document, and the number of runs of each document.

    tokens   documents one after the other, Int[N]
    lengths  number of tokens of each document, at least 1
    """
    counts = np.maximum(lengths.astype(np.int64) - (RUN - 1), 1)
    hashes = [_runs(*group) for group in _groups(tokens, lengths)]
    return np.concatenate([np.zeros(0, np.uint64), *hashes]), counts


def _runs(tokens: NDArray[Any], lengths: NDArray[np.int64]) -> Hashes:
    # The first token of each run, and the one after its last.
    counts = np.maximum(lengths - (RUN - 1), 1)
    ends, first_runs = np.cumsum(lengths), np.cumsum(counts) - counts
    begins = np.arange(counts.sum()) + np.repeat(ends - lengths - first_runs, counts)
    stops = np.minimum(begins + RUN, np.repeat(ends, counts))
    # A polynomial modulo 2**64: the difference of two prefix sums, shifted down to the first power.
    powers, inverses = _powers(1 << len(tokens).bit_length())
    sums = np.zeros(len(tokens) + 1, np.uint64)
    np.cumsum((tokens.astype(np.uint64) + np.uint64(1)) * powers[: len(tokens)], out=sums[1:])
    return _mixed((sums[stops] - sums[begins]) * inverses[begins])


def _groups(tokens: NDArray[Any], lengths: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
    """Yield consecutive documents that have about AT_ONCE tokens together."""
    ends = np.cumsum(lengths.astype(np.int64))
    cuts = np.flatnonzero(np.diff(ends // AT_ONCE)) + 1
    yield from zip(np.split(tokens, ends[cuts - 1]), np.split(lengths.astype(np.int64), cuts), strict=True)


@dataclass(frozen=True)
class HeldOutRuns:
    """The runs of held-out text, sorted, behind a filter that quickly rejects most other runs.

    counts  False for runs that only left-out documents of the test have
    """

    hashes: Hashes
    counts: NDArray[np.bool_]
    filter: NDArray[np.uint8]

    @classmethod
    def of(cls, hashes: Hashes, left_out: Hashes | None = None) -> HeldOutRuns:
        """Return the runs by their hashes, which may repeat, and those of the left-out documents."""
        counted = np.unique(hashes)
        hashes = counted if left_out is None else np.unique(np.append(counted, left_out))
        # The filter has a bit for each possible value of the first `bits` of a hash.
        bits = max(16, int(len(hashes) * BITS).bit_length())
        filter = np.zeros(1 << (bits - 3), np.uint8)
        for begin in range(0, len(hashes), AT_ONCE):
            places = hashes[begin : begin + AT_ONCE] >> np.uint64(64 - bits)
            np.bitwise_or.at(filter, places >> np.uint64(3), np.uint8(1) << (places & np.uint64(7)).astype(np.uint8))
        return cls(hashes, np.isin(hashes, counted, assume_unique=True), filter)

    @classmethod
    def load(cls, folder: Path) -> HeldOutRuns:
        """Map the saved arrays; processes of one machine share the memory."""
        return cls(*(np.load(folder / name, mmap_mode="r") for name in FILES))

    def save(self, folder: Path) -> None:
        """Write both arrays. Raises OSError."""
        arrays: list[NDArray[Any]] = [self.hashes, self.counts, self.filter]
        for name, array in zip(FILES, arrays, strict=True):
            with new_file(folder / name, "wb") as stream:
                np.save(stream, array)

    def find(self, hashes: Hashes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the indices of the hashes that are runs of held-out text, and their indices in `self.hashes`."""
        # Candidates: hashes whose bit of the filter is set.
        places = hashes >> np.uint64(64 - (len(self.filter).bit_length() + 2))
        octets, shifts = self.filter[places >> np.uint64(3)], (places & np.uint64(7)).astype(np.uint8)
        maybe = np.flatnonzero(octets >> shifts & np.uint8(1))
        # The candidates that are in the sorted array.
        indices = np.searchsorted(self.hashes, hashes[maybe]).clip(max=len(self.hashes) - 1)
        equal = self.hashes[indices] == hashes[maybe]
        return maybe[equal], indices[equal]


def without_overlap(
    tokens: NDArray[Any], lengths: NDArray[Any], held_out: HeldOutRuns, most: float
) -> tuple[NDArray[np.bool_], NDArray[np.int64], float]:
    """Return True for each document that shares at most the part `most` of its runs with held-out text, and these runs.

    They are indices of `held_out.hashes`, in any order, possibly repeated. The third value is the smallest `most`, in
    hundredths, with which no document of either side would be left out.
    """
    keeps, shared, sufficient = [np.zeros(0, np.bool_)], [np.zeros(0, np.int64)], 0.0
    for group, sizes in _groups(tokens, lengths):
        hashes, counts = runs(group, sizes)
        overlapping, held_out_runs = held_out.find(hashes)
        document = np.searchsorted(np.cumsum(counts), overlapping, side="right")  # of each overlapping run
        keep = np.bincount(document[held_out.counts[held_out_runs]], minlength=len(counts)) <= most * counts
        keeps.append(keep)
        shared.append(held_out_runs[keep[document]])
        sufficient = max(sufficient, _sufficient(np.bincount(document, minlength=len(counts)), counts))
    return np.concatenate(keeps), np.concatenate(shared), sufficient


def _sufficient(shared: NDArray[np.int64], counts: NDArray[np.int64]) -> float:
    """Return the smallest share, in hundredths, that is not exceeded as `without_overlap` computes it."""
    hundredths = -(-100 * shared // counts)
    hundredths += shared > hundredths / 100 * counts  # 0.29 * 100 is below 29
    return int(hundredths.max(initial=0)) / 100


def _mixed(x: Hashes) -> Hashes:
    """Spread the low bits, which are the weak ones of a polynomial, over all (the finalizer of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = x ^ (x >> np.uint64(31))
    return mixed


@lru_cache(maxsize=1)
def _powers(size: int) -> tuple[Hashes, Hashes]:
    factors = np.full((2, size), [[FACTOR], [INVERSE]], np.uint64)
    factors[:, 0] = 1
    powers, inverses = np.cumprod(factors, axis=1)
    return powers, inverses
