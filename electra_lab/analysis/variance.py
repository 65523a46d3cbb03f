"""The variance of a mean over seeds that all share the same units, such as documents or references.

A model with crossed random effects: a number for each seed and unit is the mean, plus what the seed adds, what the unit
adds, and what only both together do. New seeds and new units would have given another mean.

Few units know their variance badly: three references often look alike by chance. An interval that takes the estimates
of the variances for the truth is then too narrow. So all variances that the data leave possible are averaged over, as a
generalised p value does (Weerahandi 1993, Generalized Confidence Intervals); with seeds alone this is Student's t test.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, ndtr, ndtri

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Layer:
    """What units add to the variance of a mean over S seeds and U units.

    between  the variance of the mean of the units' means, MS_U / (S U)
    noise    what of it is there by their interaction with the seeds alone, MS_SU / (S U)
    """

    units: int
    between: float
    noise: float

    @property
    def beyond(self) -> float:
        """What the units add to the variance by seeds, by the method of moments."""
        return max(0.0, self.between - self.noise)


def layer(numbers: Array) -> Layer:
    """Return the layer of Float64[S U]; S and U are at least 2."""
    seeds, units = numbers.shape
    of_units, of_seeds = numbers.mean(0), numbers.mean(1)
    rest = numbers - of_units - of_seeds[:, None] + numbers.mean()
    noise = float((rest**2).sum()) / ((seeds - 1) * (units - 1)) / (seeds * units)
    return Layer(units, float(np.var(of_units, ddof=1)) / units, noise)


def possible(seeds: int, by_seeds: Array, layers: Sequence[tuple[int, Array, Array]], draws: int = 2048) -> Array:
    """Return Float64[... draws], variances of a mean that the data leave possible.

    by_seeds  Float64[...], the variance by seeds, as found
    layers    number of units, `between` and `noise`, each Float64[...]

    An estimate is its variance times a chi-square number over its degrees of freedom, so a possible variance is the
    estimate divided by one.
    """
    found = by_seeds[..., None] / _chi2(seeds - 1, draws, 0)
    for i, (units, *estimates) in enumerate(layers):
        between, noise = (
            each[..., None] / _chi2(df, draws, 1 + 2 * i + j)
            for j, (each, df) in enumerate(zip(estimates, _freedoms(seeds, units), strict=True))
        )
        found = found + np.maximum(0.0, between - noise)
    return found


def p_value(distance: Array, variances: Array) -> Array:
    """Return Float64[...], how likely a mean is so far from its true value, over variances Float64[... draws]."""
    found: Array = 2 * ndtr(-np.abs(distance)[..., None] / np.sqrt(variances)).mean(-1)
    return found


def limit(level: float, variances: Array) -> Array:
    """Return Float64[...], the distance whose p value is `level`: by Newton's method on its logarithm, from below."""
    slopes = 1 / np.sqrt(variances)
    found = -ndtri(level / 2) / slopes.max(-1)
    for _ in range(60):
        at = found[..., None] * slopes
        p, density = 2 * ndtr(-at).mean(-1), 2 * (np.exp(-at * at / 2) * slopes).mean(-1) / math.sqrt(2 * math.pi)
        step = np.log(p / level) * p / density
        found = found + step
        if (np.abs(step) <= 1e-9 * found).all():
            break
    return np.asarray(found)


def smallest_found(level: float, power: float, seeds: int, by_seeds: float, layers: Sequence[Layer]) -> float:
    """Return the true mean that a test at a level finds with a probability of `power`, by 1,000 experiments.

    The estimates are taken for what the variances truly are.
    """
    experiments, first = 1000, 100  # other numbers than those of the variances that are possible
    found = list[tuple[int, Array, Array]]()
    for i, each in enumerate(layers):
        between, noise = (
            _chi2(df, experiments, first + 2 + 2 * i + j) for j, df in enumerate(_freedoms(seeds, each.units))
        )
        found.append((each.units, (each.beyond + each.noise) * between, each.noise * noise))
    variances = possible(seeds, by_seeds * _chi2(seeds - 1, experiments, first + 1), found, draws=512)
    luck = ndtri(_evenly(experiments, first)) * math.sqrt(by_seeds + sum(each.beyond for each in layers))
    return float(np.quantile(limit(level, variances) - luck, power))


def _freedoms(seeds: int, units: int) -> tuple[int, int]:
    """Degrees of freedom of `between` and of `noise`."""
    return units - 1, (seeds - 1) * (units - 1)


@cache
def _evenly(n: int, which: int) -> Array:
    """Return n numbers between 0 and 1, evenly spaced and in a random order: another one for each `which`."""
    found: Array = np.random.default_rng(which).permutation((np.arange(n) + 0.5) / n)
    return found


@cache
def _chi2(df: int, n: int, which: int) -> Array:
    """Return n chi-square numbers over their degrees of freedom."""
    found: Array = chdtri(df, _evenly(n, which)) / df
    return found
