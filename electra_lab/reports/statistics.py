"""Means, paired differences and corrected tests of a few seeds.

Every run of one seed shares its data order, masks and draws with the other variants' runs of that seed, so variants are
compared seed by seed: the difference of a pair is free of the effect that the seed has on both. Intervals and tests are
Student's t, which assumes roughly normal differences; so few seeds cannot check that.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

CONFIDENCE = 0.95
ALPHA = 0.05  # of all tests of a report together: below it, a difference is called distinguishable
PRIMARY = 0.8  # the planned comparisons' share of it
ENOUGH = 5  # seeds; with fewer, a finding is a reason to look again

Values = Mapping[str, Mapping[int, float]]  # of one metric: by variant, by seed
Units = Mapping[int, Sequence[float]]  # by seed, a number for each document, or for each reference
Sides = tuple[Units, Units]
Layers = Sequence[Mapping[str, Units]]  # by variant
K = TypeVar("K")


@dataclass(frozen=True)
class Estimate:
    """A mean of n numbers with its confidence interval; if there is no interval, `why` says so."""

    n: int
    mean: float | None
    low: float | None = None
    high: float | None = None
    why: str = ""

    @property
    def half(self) -> float | None:
        """Half the width of the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True)
class Difference(Estimate):
    """A mean paired difference.

    error  its standard error
    p      of a two-sided test of this alone; `holm` of a whole report; None: not tested
    """

    error: float | None = None
    p: float | None = None
    holm: float | None = None

    @property
    def distinguishable(self) -> bool:
        """The corrected test distinguishes it from seed noise."""
        return self.holm is not None and self.holm <= ALPHA

    def found(self, higher: bool) -> bool:
        """Distinguishable, and above zero, or below it."""
        return self.distinguishable and self.mean is not None and (self.mean > 0) == higher


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean with Student's t interval, mean -+ t(0.975, n - 1) s / sqrt(n)."""
    return _t(values, max((abs(v) for v in values), default=0.0), "value")[0]


def difference(ours: Mapping[int, float], theirs: Mapping[int, float], layers: Sequence[Sides] = ()) -> Difference:
    """Return ours minus theirs over the seeds that both have: the paired t interval and test (Student 1908).

    layers  what else the numbers would differ by if it were drawn again, such as documents or references: of each, ours
            and theirs by seed, a number for each of its units. All seeds share the units.

    With layers, the variance of the mean is that of a model with crossed random effects, by the method of moments:
    to the variance by seeds, each layer adds what its units vary beyond its interaction with the seeds, if anything.
    Degrees of freedom are those of Satterthwaite (1946). Fewer than five pairs have an interval, but no test.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    scale = max((abs(v) for seed in seeds for v in (ours[seed], theirs[seed])), default=0.0)
    found, error = _t([ours[seed] - theirs[seed] for seed in seeds], scale, "difference")
    if error is None or found.mean is None:
        return Difference(found.n, found.mean, why=found.why)
    sides = [[side[seed] for seed in seeds if seed in side] for pair in layers for side in pair]
    units = [np.subtract(a, b) for a, b in zip(sides[::2], sides[1::2], strict=True) if len(a) == len(b) == len(seeds)]
    # As shares of the variance by seeds, whose square may be too small for a number.
    shares = [(1.0, len(seeds) - 1)]
    shares += [(_beyond(each / error), each.shape[1] - 1) for each in units if each.shape[1] > 1]
    total = sum(share for share, _ in shares)
    freedom, error = total**2 / sum(share**2 / df for share, df in shares), error * math.sqrt(total)
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    p = float(2 * stdtr(freedom, -abs(found.mean) / error))
    why = "" if found.n >= ENOUGH else f"{found.n} seeds: not tested"
    bounds = found.mean - half, found.mean + half
    return Difference(found.n, found.mean, *bounds, why, error, None if why else p)


def _beyond(numbers: NDArray[np.float64]) -> float:
    """Return, of Float64[S U], the variance of the mean that units add to that by seeds: (MS_U - MS_SU) / (S U)."""
    seeds, units = numbers.shape
    of_units, of_seeds = numbers.mean(0), numbers.mean(1)
    rest = numbers - of_units - of_seeds[:, None] + numbers.mean()
    noise = float((rest**2).sum()) / ((seeds - 1) * (units - 1)) / (seeds * units)
    beyond: float = np.var(of_units, ddof=1) / units - noise
    return max(0.0, beyond)


def _t(values: Sequence[float], scale: float, what: str) -> tuple[Estimate, float | None]:
    """Return mean and interval, and the standard error. `scale` is the size of the underlying numbers."""
    n = len(values)
    if n == 0:
        return Estimate(0, None, why="no seed in common" if what == "difference" else "not measured"), None
    mean = float(np.mean(values))
    if n == 1:
        return Estimate(1, mean, why="one seed: no interval"), None
    # Equal numbers have a spread of rounding errors at most; an interval of that width would claim certainty.
    if (spread := float(np.std(values, ddof=1))) <= 8 * np.finfo(float).eps * scale:
        return Estimate(n, mean, why=f"the same {what} with every seed: no interval"), None
    error = spread / math.sqrt(n)
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * error
    return Estimate(n, mean, mean - half, mean + half), error


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return Holm's step-down adjusted p-values, in the given order; None, not tested, is not part of the family.

    Holm (1979), A simple sequentially rejective multiple test procedure: with the m tests sorted, p(i) is multiplied by
    m - i + 1, at least its predecessor and at most 1. It bounds the chance of any false finding for tests that depend
    on each other in any way, as these do through the baseline that they share.
    """
    tested = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(tested):
        largest = min(1.0, max(largest, (len(tested) - rank) * p))
        adjusted[i] = largest
    return adjusted


def corrected(planned: Mapping[K, Difference], others: Mapping[K, Difference]) -> dict[K, Difference]:
    """Return all of them with p values that bound the chance of any false finding among them together.

    The planned ones, of the primary metric with the baseline, share 4/5 of it by Holm's procedure, all others 1/5.
    """
    both = any(d.p is not None for d in planned.values()) and any(d.p is not None for d in others.values())
    found: dict[K, Difference] = {}
    for family, share in ((planned, PRIMARY), (others, 1 - PRIMARY)):
        adjusted = holm([d.p for d in family.values()])
        for (key, d), p in zip(family.items(), adjusted, strict=True):
            found[key] = replace(d, holm=None if p is None else min(1.0, p / (share if both else 1.0)))
    return found


def against(values: Values, baseline: str, layers: Layers = ()) -> dict[str, Difference]:
    """Compare each other variant with the baseline."""
    return {label: _paired(label, baseline, values, layers) for label in values if label != baseline}


def pairwise(values: Values, baseline: str, layers: Layers = ()) -> dict[tuple[str, str], Difference]:
    """Compare every two variants but the baseline, the first of both minus the second.

    The best variant is known only after seeing the data, so comparing it with its rivals has to be corrected as if
    every pair had been compared.
    """
    others = [label for label in values if label != baseline]
    return {(a, b): _paired(a, b, values, layers) for a, b in combinations(others, 2)}


def _paired(one: str, other: str, values: Values, layers: Layers) -> Difference:
    pairs = [(layer.get(one, {}), layer.get(other, {})) for layer in layers]
    return difference(values.get(one, {}), values.get(other, {}), pairs)


def two_groups(values: Values) -> tuple[float, list[str]] | None:
    """Return where the numbers of all seeds fall into two groups, and the variants with seeds in both; None if not.

    They do if a normal sample of this size leaves so little of its variance within its best two groups once in a
    hundred times: some runs have made a step that others have not. Intervals then are too narrow.
    """
    numbers = np.sort([v for each in values.values() for v in each.values()])
    if len(numbers) < ENOUGH or not np.ptp(numbers) > 0:
        return None
    within, cut = _best_split(numbers[None])
    if within[0] >= _least_within(len(numbers)):
        return None
    sides = {label: {v > cut[0] for v in each.values()} for label, each in values.items()}
    torn = [label for label, side in sides.items() if len(side) == 2]
    return (float(cut[0]), torn) if torn else None


@cache
def _least_within(n: int) -> float:
    """Return the 1 % quantile, by 20,000 normal samples, of the share of the variance within the best two groups."""
    samples = np.sort(np.random.default_rng(n).normal(size=(20_000, n)), axis=1)
    return float(np.quantile(_best_split(samples)[0], 0.01))


def _best_split(ordered: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return of each row the least share of its variance within two groups, and the middle between these."""
    n = ordered.shape[1]
    size = np.arange(1, n)
    below = np.cumsum(ordered, axis=1)[:, :-1]
    mean = ordered.mean(1, keepdims=True)
    # The variance between two groups is size (n - size) / n^2 times the squared difference of their means.
    between = (below / size - (mean * n - below) / (n - size)) ** 2 * size * (n - size) / n**2
    best = between.argmax(1)
    middle = (np.take_along_axis(ordered, best[:, None], 1) + np.take_along_axis(ordered, best[:, None] + 1, 1))[
        :, 0
    ] / 2
    return 1 - between.max(1) / ordered.var(1), middle


def fewest_seeds(values: Values, baseline: str) -> int:
    """Return the fewest seeds that a measured variant shares with the baseline; or has, if there is no baseline."""
    theirs = values.get(baseline)
    return min((len(each.keys() & (theirs or each).keys()) for each in values.values() if each), default=0)


def untested(values: Values, baseline: str) -> list[str]:
    """Return the measured variants with too few seeds in common with the baseline; or of their own, without one."""
    theirs = values.get(baseline)
    return [k for k, each in values.items() if each and k != baseline and len(each.keys() & (theirs or each)) < ENOUGH]


def is_exploratory(values: Values, baseline: str) -> bool:
    """Return True if no variant has enough seeds to be tested."""
    others = [label for label, each in values.items() if each and label != baseline]
    return len(untested(values, baseline)) == len(others)


def named(label: str) -> str:
    """Quote a label that would run into the sentence."""
    return f'"{label}"' if " " in label else label


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def number(value: float | None, sign: bool = False) -> str:
    """Format four digits, at most four decimals: 0.7123, -0.0021, 5.123, 12,345; a missing number is a dash."""
    if value is None:
        return "-"
    size, plus = abs(value), "+" if sign else ""
    if size == 0:
        return "0"
    if size >= 1e6 or size < 1e-4:
        return f"{value:{plus}.3g}"
    return f"{value:{plus},.{max(0, min(4, 3 - math.floor(math.log10(size))))}f}"


def p_text(p: float | None) -> str:
    """`p = 0.31`, `p < 0.001`."""
    if p is None:
        return "p undefined"
    return "p < 0.001" if p < 0.001 else f"p = {p:.2f}" if p >= 0.0995 else f"p = {p:.3f}"
