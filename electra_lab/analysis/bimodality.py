"""Seeds in two groups: some runs have begun to learn, others with the same settings have not."""

from collections.abc import Sequence
from functools import cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from electra_lab.analysis.intervals import ENOUGH, Array, Values

Whole = NDArray[np.int64]


def bimodal(values: Values) -> tuple[float, list[str]] | None:
    """Return the cut between two groups of seeds and the variants with seeds in both; None without two groups.

    There are two groups if splitting the seeds of each variant at one number, the same for all, leaves as little of the
    variance within variants as it does once in a hundred times for independent normal numbers with one mean and one
    spread. Variants with different means are split less by one number; where spreads differ widely, or seeds have a
    large effect on all variants, chance does it more often. Intervals are too narrow if some runs have made a step that
    others have not.
    """
    known = {label: sorted(seeds.values()) for label, seeds in values.items() if seeds}
    sizes = [len(ordered) for ordered in known.values()]
    numbers = np.array([*chain(*known.values())], float)
    variant = np.repeat(np.arange(len(sizes)), sizes)
    if len(numbers) < ENOUGH or not any(ordered[0] < ordered[-1] for ordered in known.values()):
        return None
    middle = numbers.mean()
    scale = np.abs(numbers - middle).max()  # squares of large, tiny or nearly equal numbers lose their differences
    left, scaled_cut = _best_split((numbers[None] - middle) / scale, variant, np.array(sizes))
    if left[0] >= _least_left(tuple(sorted(sizes))):
        return None
    cut = float(scaled_cut[0] * scale + middle)
    return cut, [label for label, ordered in known.items() if ordered[0] <= cut < ordered[-1]]


@cache
def _least_left(sizes: Sequence[int]) -> float:
    """Return the 1 % quantile, by 10,000 normal samples, of the variance that the best split leaves."""
    rng, variant = np.random.default_rng(sum(sizes)), np.repeat(np.arange(len(sizes)), sizes)
    left, _ = _best_split(rng.normal(size=(10_000, sum(sizes))), variant, np.array(sizes))
    return float(np.quantile(left, 0.01))


def _best_split(numbers: Array, variant: Whole, sizes: Whole) -> tuple[Array, Array]:
    """Return the least share of the variance within variants that a split leaves, Float64[T], and its cut, Float64[T].

    numbers  Float64[T N], a sample per row
    variant  Int64[N], the variant of each column
    sizes    Int64[V], the number of columns of each variant
    """
    rows, n = np.arange(len(numbers)), numbers.shape[1]
    order = np.argsort(numbers, axis=1)
    ordered = np.take_along_axis(numbers, order, 1)
    means = np.stack([numbers[:, variant == v].mean(1) for v in range(len(sizes))], 1)  # [T V]
    centred = numbers - means[:, variant]
    # Moved one by one, from the lowest, to the side below; of each variant, the variance between its two sides is
    # below above / size times the squared difference of their means.
    below, deviation = np.zeros((len(numbers), len(sizes))), np.zeros((len(numbers), len(sizes)))
    most, cut = np.zeros(len(numbers)), ordered[:, 0].copy()
    for i in range(n - 1):
        moved = variant[order[:, i]]
        below[rows, moved] += 1
        deviation[rows, moved] += centred[rows, order[:, i]]
        above = sizes - below
        between = (deviation**2 * sizes / np.maximum(below * above, 1)).sum(1)
        better = (between > most) & (ordered[:, i] < ordered[:, i + 1])
        most = np.where(better, between, most)
        cut = np.where(better, (ordered[:, i] + ordered[:, i + 1]) / 2, cut)
    return 1 - most / (centred**2).sum(1), cut
