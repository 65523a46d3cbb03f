"""Means, paired differences and corrected tests of a few seeds.

Every run of one seed shares its data order, masks and draws with the other variants' runs of that seed, so variants are
compared seed by seed: the difference of a pair is free of the effect that the seed has on both. Intervals and tests are
Student's t, which assumes roughly normal differences; so few seeds cannot check that.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TypeVar

import numpy as np
from scipy.special import stdtr, stdtrit

from electra_lab.analysis.variance import Layer, layer, limit, p_value, possible

CONFIDENCE = 0.95
ALPHA = 0.05  # of all tests of a report together: below it, a difference is called distinguishable
PRIMARY = 0.8  # the planned comparisons' share of it
SMALL, MANY = 0.01, 65536  # p values below it are found by so many draws of the variances that are possible
ENOUGH = 5  # seeds; with fewer, a finding is a reason to look again

Values = Mapping[str, Mapping[int, float]]  # of one metric: by variant, by seed
Units = Mapping[int, Sequence[float]]  # by seed, a number for each document, or for each reference
Sides = tuple[Units, Units]
Layers = Mapping[str, Mapping[str, Units]]  # by what the units are, such as documents, and by variant
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

    error   its standard error by seeds alone
    layers  what other documents or references add to its variance, as shares of the error's square
    p       of a two-sided test of this alone; `holm` of a whole report; None: not tested
    """

    error: float | None = None
    layers: Mapping[str, Layer] = field(default_factory=dict)
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


def difference(
    ours: Mapping[int, float], theirs: Mapping[int, float], layers: Mapping[str, Sides] | None = None
) -> Difference:
    """Return ours minus theirs over the seeds that both have: the paired t interval and test (Student 1908).

    layers  what else the numbers would differ by if it were drawn again, such as documents or references: of each, ours
            and theirs by seed, a number for each of its units. All seeds share the units; what some lack is known
            by the others, if these are two or more.

    With layers, the interval is about other units as well (`reports.variance`), and never narrower than without.
    Fewer than five pairs have an interval, but no test.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    scale = max((abs(v) for seed in seeds for v in (ours[seed], theirs[seed])), default=0.0)
    found, error = _t([ours[seed] - theirs[seed] for seed in seeds], scale, "difference")
    if error is None or found.mean is None or found.half is None:
        return Difference(found.n, found.mean, why=found.why)
    half, p = found.half, float(2 * stdtr(found.n - 1, -abs(found.mean) / error))
    known = dict[str, Layer]()
    for name, sides in (layers or {}).items():
        there = [seed for seed in seeds if all(seed in side for side in sides)]
        one, other = ([side[seed] for seed in there] for side in sides)
        if len(there) > 1 and len({len(each) for each in (*one, *other)}) == 1 and len(one[0]) > 1:
            # As shares of the error, whose square may be too small for a number.
            known[name] = layer(np.subtract(one, other) / error)
    if known:
        estimates = [(each.units, np.asarray(each.between), np.asarray(each.noise)) for each in known.values()]
        variances = possible(found.n, np.ones(()), estimates)
        half = max(half, error * float(limit(1 - CONFIDENCE, variances)))
        distance = np.asarray(found.mean / error)
        beyond = p_value(distance, variances)
        if beyond < SMALL:
            beyond = p_value(distance, possible(found.n, np.ones(()), estimates, draws=MANY))
        p = max(p, float(beyond))
    why = "" if found.n >= ENOUGH else f"{found.n} seeds: not tested"
    bounds = found.mean - half, found.mean + half
    return Difference(found.n, found.mean, *bounds, why, error, known, None if why else p)


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


def against(values: Values, baseline: str, layers: Layers | None = None) -> dict[str, Difference]:
    """Compare each other variant with the baseline."""
    return {label: _paired(label, baseline, values, layers) for label in values if label != baseline}


def pairwise(values: Values, baseline: str, layers: Layers | None = None) -> dict[tuple[str, str], Difference]:
    """Compare every two variants but the baseline, the first of both minus the second.

    The best variant is known only after seeing the data, so comparing it with its rivals has to be corrected as if
    every pair had been compared.
    """
    others = [label for label in values if label != baseline]
    return {(a, b): _paired(a, b, values, layers) for a, b in combinations(others, 2)}


def _paired(one: str, other: str, values: Values, layers: Layers | None) -> Difference:
    pairs = {name: (each.get(one, {}), each.get(other, {})) for name, each in (layers or {}).items()}
    return difference(values.get(one, {}), values.get(other, {}), pairs)


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
    return bool(others) and len(untested(values, baseline)) == len(others)


def named(label: str) -> str:
    """Quote a label that would run into the sentence."""
    return f'"{label}"' if " " in label else label


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def are(names: Sequence[str]) -> str:
    """`a is`, `a and b are`."""
    return f"{listed(names)} {'is' if len(names) == 1 else 'are'}"


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
    """`p = 0.31`, `p < 0.001`, `p = 0.0504`, which is not below the limit."""
    if p is None:
        return "p undefined"
    if p < 0.001:
        return "p < 0.001"
    digits = 2 if p >= 0.0995 else 3
    while (round(p, digits) <= ALPHA) != (p <= ALPHA):
        digits += 1
    return f"p = {p:.{digits}f}"
