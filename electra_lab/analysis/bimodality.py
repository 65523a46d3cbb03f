"""Seeds in two groups: some runs have made a step that others with the same settings have not."""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from electra_lab.analysis.statistics import ENOUGH, Values

Array = NDArray[np.float64]
Whole = NDArray[np.int64]


def two_groups(values: Values) -> tuple[float, list[str]] | None:
    """Return where the numbers of all seeds fall into two groups, and the variants with seeds in both; None if not.

    They do if splitting the seeds of each variant at one number, the same for all, leaves so little of the variance
    within variants as it does once in a hundred times for independent normal numbers with one mean and one spread.
    Variants with means of their own are split less by one number; where spreads differ widely, or seeds have a large
    effect on all variants, chance does it more often. Intervals are too narrow if some runs have made a step that
    others have not.
    """
    known = {label: sorted(each.values()) for label, each in values.items() if each}
    sizes = [len(each) for each in known.values()]
    numbers = np.array([v for each in known.values() for v in each], float)
    variant = np.repeat(np.arange(len(sizes)), sizes)
    if len(numbers) < ENOUGH or not any(each[0] < each[-1] for each in known.values()):
        return None
    middle = numbers.mean()
    scale = np.abs(numbers - middle).max()  # squares of numbers that are large, tiny or alike would lose what differs
    left, cut = _best_split((numbers[None] - middle) / scale, variant, np.array(sizes))
    if left[0] >= _least_left(tuple(sorted(sizes))):
        return None
    where = float(cut[0] * scale + middle)
    return where, [label for label, each in known.items() if each[0] <= where < each[-1]]


@cache
def _least_left(sizes: Sequence[int]) -> float:
    """Return the 1 % quantile, by 10,000 normal samples, of what the best split leaves of the variance."""
    rng, variant = np.random.default_rng(sum(sizes)), np.repeat(np.arange(len(sizes)), sizes)
    left, _ = _best_split(rng.normal(size=(10_000, sum(sizes))), variant, np.array(sizes))
    return float(np.quantile(left, 0.01))


def _best_split(numbers: Array, variant: Whole, sizes: Whole) -> tuple[Array, Array]:
    """Return of each row, Float64[T N], the least share of the variance within variants that a split leaves, and where.

    variant  Int64[N], whose each column is
    sizes    Int64[V], how many columns each has
    """
    rows, n = np.arange(len(numbers)), numbers.shape[1]
    order = np.argsort(numbers, axis=1)
    ordered = np.take_along_axis(numbers, order, 1)
    centred = numbers - np.stack([numbers[:, variant == v].mean(1) for v in range(len(sizes))], 1)[:, variant]
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
