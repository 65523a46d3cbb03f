"""Intervals of accuracies, over other examples of the same kind."""

import math
from collections.abc import Sequence

from electra_lab.metrics import CONFIDENCE


def wilson(share: float, number: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of `number` independent examples: Wilson's (1927), the score interval.

    A tie counts one half. An example with three outcomes varies less than one with two and the same mean, so with ties
    the interval is too wide rather than too narrow.
    """
    from scipy.special import ndtri

    z = float(ndtri((1 + CONFIDENCE) / 2))
    centre = (share + z * z / (2 * number)) / (1 + z * z / number)
    half = z / (1 + z * z / number) * math.sqrt(share * (1 - share) / number + z * z / (4 * number * number))
    return max(centre - half, 0.0), min(centre + half, 1.0)


def mean_of_shares(shares: Sequence[float], numbers: Sequence[int]) -> tuple[float, float, float]:
    """Return the mean of the shares of several groups, each of which counts the same, and its 95 % interval.

    Zou and Donner (2008), doi:10.1002/sim.3095: the distances of the mean from its limits are those of the groups, in
    squares. Of a single group this is its own interval.
    """
    mean = math.fsum(shares) / len(shares)
    limits = [wilson(*group) for group in zip(shares, numbers, strict=True)]
    below = math.hypot(*(share - low for share, (low, _) in zip(shares, limits, strict=True))) / len(shares)
    above = math.hypot(*(high - share for share, (_, high) in zip(shares, limits, strict=True))) / len(shares)
    return mean, mean - below, mean + above
