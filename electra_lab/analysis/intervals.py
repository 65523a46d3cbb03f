"""Means of a few seeds and their paired differences, with 95% intervals and p values.

All variants share the data order, masks and draws of a seed, so they are compared seed by seed: a paired difference is
free of the effect that the seed has on both. With seeds alone, intervals and tests are Student's t, which assumes
roughly normal differences. All seeds also share units, such as test documents or references. New seeds and new units
would have given another mean, so this is a model with crossed random effects: a number for each seed and unit is the
mean, plus an effect of the seed, one of the unit, and one of both together.

Three references often look alike by chance, so an interval that takes estimated variances for the truth is too narrow.
Instead, all variances that the data leave possible are averaged over, as a generalized p value does (Weerahandi 1993,
Generalized Confidence Intervals), by Monte Carlo. A hierarchical bootstrap, which resamples seeds, documents and
references, is better known but does not hold: in the 24 settings of `benchmarks/coverage.py` with 5 and 8 seeds, its
percentile intervals cover 77.7 to 97.4 %, and 83.8 to 99.8 % with its standard error and Student's t. These intervals
cover 94.6 to 98.9 %. docs/ablations.md has all numbers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, ndtr, ndtri, stdtr, stdtrit

CONFIDENCE = 0.95
ALPHA = 0.05  # of all tests of a report together: below it, a difference is called distinguishable
SMALL, MANY = 0.01, 65536  # p values below SMALL are found by MANY draws of the possible variances
ENOUGH = 5  # seeds; with fewer, a finding is a reason to look again
MANY_DOCUMENTS = 100  # from here on, intervals hold for lognormal documents, too: 94 to 96 %

Array = NDArray[np.float64]
Values = Mapping[str, Mapping[int, float]]  # of one metric: by variant, by seed
Units = Mapping[int, Sequence[float]]  # by seed, a number for each document, or for each reference
Sides = tuple[Units, Units]
Layers = Mapping[str, Mapping[str, Units]]  # by the kind of the units, such as documents, and by variant


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
class Layer:
    """Variance that units add to a mean over S seeds and U units.

    between  the variance of the mean of the units' means, MS_U / (S U)
    noise    the part of it that comes from their interaction with the seeds, MS_SU / (S U)
    """

    units: int
    between: float
    noise: float

    @property
    def beyond(self) -> float:
        """The variance that the units add to that of the seeds, by the method of moments."""
        return max(0.0, self.between - self.noise)


@dataclass(frozen=True)
class Difference(Estimate):
    """A mean paired difference.

    error   its standard error by seeds alone
    layers  the variance that other documents or references add, as shares of the error's square
    p       p value of a two-sided test; None if not tested
    holm    p value corrected for all comparisons of a report; None if not tested
    """

    error: float | None = None
    layers: Mapping[str, Layer] = field(default_factory=dict)
    p: float | None = None
    holm: float | None = None

    @property
    def distinguishable(self) -> bool:
        """The corrected test distinguishes it from seed noise."""
        return self.holm is not None and self.holm <= ALPHA

    def differs(self, higher: bool) -> bool:
        """Distinguishable, and above zero, or below it."""
        return self.distinguishable and self.mean is not None and (self.mean > 0) == higher


def estimate(values: Sequence[float], bounds: tuple[float, float] | None = None) -> Estimate:
    """Return the mean with Student's t interval, mean -+ t(0.975, n - 1) s / sqrt(n), within the bounds of a metric."""
    mean, _ = _t(values, max((abs(value) for value in values), default=0.0), "value")
    if bounds is None or mean.low is None or mean.high is None:
        return mean
    return replace(mean, low=max(mean.low, bounds[0]), high=min(mean.high, bounds[1]))


def difference(
    minuend: Mapping[int, float], subtrahend: Mapping[int, float], layers: Mapping[str, Sides] | None = None
) -> Difference:
    """Return minuend - subtrahend over the seeds that both have: the paired t interval and test (Student 1908).

    layers  numbers of each unit on both sides by seed, for each kind of units that all seeds share. If some seeds lack
            them, the units of the others are used if these are two or more.

    With layers, the interval is about other units as well, and never narrower than without. Fewer than five pairs have
    an interval, but no test.
    """
    # Seeds alone: Student's t.
    seeds = sorted(minuend.keys() & subtrahend.keys())
    scale = max((max(abs(minuend[seed]), abs(subtrahend[seed])) for seed in seeds), default=0.0)
    by_seeds, error = _t([minuend[seed] - subtrahend[seed] for seed in seeds], scale, "difference")
    n, mean, half = by_seeds.n, by_seeds.mean, by_seeds.half
    if error is None or mean is None or half is None:
        return Difference(n, mean, why=by_seeds.why)
    p = float(2 * stdtr(n - 1, -abs(mean) / error))

    # Units as well, as shares of the error, whose square may be too small for a number.
    shared = dict[str, Layer]()
    for name, (a, b) in (layers or {}).items():
        both = [seed for seed in seeds if seed in a and seed in b]
        lengths = {len(a[seed]) for seed in both} | {len(b[seed]) for seed in both}
        if len(both) > 1 and len(lengths) == 1 and min(lengths) > 1:
            numbers = np.array([a[seed] for seed in both]) - np.array([b[seed] for seed in both])  # [S U]
            shared[name] = layer(numbers / error)
    if shared:
        estimates = [(units.units, np.asarray(units.between), np.asarray(units.noise)) for units in shared.values()]
        variances = possible(n, np.ones(()), estimates)
        half = max(half, error * float(limit(1 - CONFIDENCE, variances)))
        distance = np.asarray(mean / error)
        beyond = p_value(distance, variances)
        if beyond < SMALL:
            beyond = p_value(distance, possible(n, np.ones(()), estimates, draws=MANY))
        p = max(p, float(beyond))
    why = "" if n >= ENOUGH else f"{n} seeds: not tested"
    return Difference(n, mean, mean - half, mean + half, why, error, shared, None if why else p)


def _t(values: Sequence[float], scale: float, kind: str) -> tuple[Estimate, float | None]:
    """Return mean and interval, and the standard error. `scale` is the size of the underlying numbers."""
    n = len(values)
    if n == 0:
        return Estimate(0, None, why="no seed in common" if kind == "difference" else "not measured"), None
    mean = float(np.mean(values))
    if n == 1:
        return Estimate(1, mean, why="one seed: no interval"), None
    # Equal numbers have a spread of rounding errors at most; an interval of that width would claim certainty.
    spread = float(np.std(values, ddof=1))
    if spread <= 8 * np.finfo(float).eps * scale:
        return Estimate(n, mean, why=f"the same {kind} with every seed: no interval"), None
    error = spread / math.sqrt(n)
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * error
    return Estimate(n, mean, mean - half, mean + half), error


def layer(numbers: Array) -> Layer:
    """Return the layer of Float64[S U]; S and U are at least 2."""
    seeds, units = numbers.shape
    of_units, of_seeds = numbers.mean(0), numbers.mean(1)
    rest = numbers - of_units - of_seeds[:, None] + numbers.mean()
    noise = float((rest**2).sum()) / ((seeds - 1) * (units - 1)) / (seeds * units)
    return Layer(units, float(np.var(of_units, ddof=1)) / units, noise)


def possible(seeds: int, by_seeds: Array, layers: Sequence[tuple[int, Array, Array]], draws: int = 2048) -> Array:
    """Return variances of a mean that the data leave possible, Float64[... draws].

    An estimate is its variance times a chi-square number over its degrees of freedom, so a possible variance is the
    estimate divided by one.

    by_seeds  Float64[...], the estimated variance by seeds
    layers    number of units, `between` and `noise`, each Float64[...]
    """
    variances = by_seeds[..., None] / _chi2(seeds - 1, draws, 0)
    for i, (units, between, noise) in enumerate(layers):
        of_units, of_noise = _freedoms(seeds, units)
        high = between[..., None] / _chi2(of_units, draws, 1 + 2 * i)
        low = noise[..., None] / _chi2(of_noise, draws, 2 + 2 * i)
        variances = variances + np.maximum(0.0, high - low)
    return variances


def p_value(distance: Array, variances: Array) -> Array:
    """Return the probability of a mean that far from its true value, Float64[...]; variances are Float64[... draws]."""
    p: Array = 2 * ndtr(-np.abs(distance)[..., None] / np.sqrt(variances)).mean(-1)
    return p


def limit(level: float, variances: Array) -> Array:
    """Return the distance whose p value is `level`, Float64[...]: by Newton's method on its logarithm, from below."""
    slopes = 1 / np.sqrt(variances)
    distance = -ndtri(level / 2) / slopes.max(-1)
    for _ in range(60):
        at = distance[..., None] * slopes
        p = 2 * ndtr(-at).mean(-1)
        density = 2 * (np.exp(-at * at / 2) * slopes).mean(-1) / math.sqrt(2 * math.pi)
        step = np.log(p / level) * p / density
        distance = distance + step
        if (np.abs(step) <= 1e-9 * distance).all():
            break
    return np.asarray(distance)


def smallest_found(level: float, power: float, seeds: int, by_seeds: float, layers: Sequence[Layer]) -> float:
    """Return the true mean that a test at a level finds with a probability of `power`, by 1,000 experiments.

    The estimates are taken for the true variances.
    """
    experiments, first = 1000, 100  # other draws than those of the possible variances
    # What each experiment estimates, and the variances that it then considers possible.
    estimates = list[tuple[int, Array, Array]]()
    for i, layer in enumerate(layers):
        of_units, of_noise = _freedoms(seeds, layer.units)
        between = (layer.beyond + layer.noise) * _chi2(of_units, experiments, first + 2 + 2 * i)
        estimates.append((layer.units, between, layer.noise * _chi2(of_noise, experiments, first + 3 + 2 * i)))
    variances = possible(seeds, by_seeds * _chi2(seeds - 1, experiments, first + 1), estimates, draws=512)
    # How far its mean lies from the true one.
    luck = ndtri(_evenly(experiments, first)) * math.sqrt(by_seeds + sum(layer.beyond for layer in layers))
    return float(np.quantile(limit(level, variances) - luck, power))


def _freedoms(seeds: int, units: int) -> tuple[int, int]:
    """Degrees of freedom of `between` and of `noise`."""
    return units - 1, (seeds - 1) * (units - 1)


@cache
def _evenly(n: int, stream: int) -> Array:
    """Return n numbers between 0 and 1, evenly spaced, in a random order that depends on the stream."""
    numbers: Array = np.random.default_rng(stream).permutation((np.arange(n) + 0.5) / n)
    return numbers


@cache
def _chi2(df: int, n: int, stream: int) -> Array:
    """Return n chi-square numbers over their degrees of freedom."""
    numbers: Array = chdtri(df, _evenly(n, stream)) / df
    return numbers
