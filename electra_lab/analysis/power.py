"""What an ablation can tell: the smallest difference that it finds with a probability of 80 %."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.special import nctdtrinc, stdtrit

from electra_lab.analysis.statistics import ALPHA, ENOUGH, PRIMARY, Difference, listed, number
from electra_lab.analysis.variance import Layer, smallest_found
from electra_lab.storage.plan import Expected, Shared

POWER = 0.8


def spread(differences: Iterable[Difference], source: str) -> Expected | None:
    """Return how much paired differences vary, pooled over those with an interval; None if none has one."""
    found = [(d, d.error**2) for d in differences if d.error is not None]
    if not found:
        return None
    shared = {
        name: _pooled([(d, square, d.layers[name]) for d, square in found if name in d.layers])
        for name in dict.fromkeys(name for d, _ in found for name in d.layers)
    }
    weights = [d.n - 1 for d, _ in found]  # degrees of freedom
    variance = float(np.average([square * d.n for d, square in found], weights=weights))
    return Expected(sd=math.sqrt(variance), source=source, shared=shared)


def _pooled(layers: Sequence[tuple[Difference, float, Layer]]) -> Shared:
    variance = float(np.mean([each.beyond * square for _, square, each in layers]))
    noise = float(np.mean([each.noise * square * d.n for d, square, each in layers]))
    return Shared(units=min(each.units for _, _, each in layers), variance=variance, noise=noise)


def detectable(seeds: int, comparisons: int) -> float | None:
    """Return the smallest difference that is found, in standard deviations of paired differences between seeds.

    That is a difference which the paired t test with this many seeds calls distinguishable with a probability of 80 %,
    at the level that Holm's procedure begins with; None for fewer seeds than are tested.
    """
    if seeds < ENOUGH or comparisons < 1:
        return None
    limit = stdtrit(seeds - 1, 1 - _level(comparisons) / 2)
    return float(nctdtrinc(seeds - 1, 1 - POWER, limit)) / math.sqrt(seeds)


def _level(comparisons: int) -> float:
    return ALPHA * PRIMARY / comparisons


def smallest(expected: Expected, seeds: int, comparisons: int) -> float | None:
    """Return the smallest difference that is found, as the metric counts; None for fewer seeds than are tested."""
    size = detectable(seeds, comparisons)
    if size is None or not expected.shared:
        return None if size is None else size * expected.sd
    layers = [
        Layer(each.units, each.variance + each.noise / seeds, each.noise / seeds) for each in expected.shared.values()
    ]
    return smallest_found(_level(comparisons), POWER, seeds, expected.sd**2 / seeds, layers)


def sentence(metric: str, seeds: int, comparisons: int, known: Sequence[Expected]) -> str:
    """Say which differences can be found by what is known of their spread; "" if there is nothing to compare."""
    if (size := detectable(seeds, comparisons)) is None:
        if seeds >= ENOUGH:
            return ""
        return f"With {seeds} seed{'s' * (seeds != 1)} no difference is tested; from {ENOUGH} seeds on, they are."
    said = f"With {seeds} seeds, {POWER:.0%} of such ablations find a difference of"
    if not known:
        return (
            f"{said} {size:.2g} standard deviations (of the differences between two variants with the same seed). How "
            "much that is, only pilot runs can tell: `power` in the file of the ablation."
        )
    return f"{said} {', and of '.join(_said(each, metric, seeds, comparisons) for each in known)}."


def _said(expected: Expected, metric: str, seeds: int, comparisons: int) -> str:
    found = number(smallest(expected, seeds, comparisons))
    varies = f"standard deviation of paired differences {number(expected.sd)}"
    beside = {name: math.sqrt(each.variance) for name, each in expected.shared.items()}
    if any(beside.values()):
        each = [f"{number(sd)} by other {name}" for name, sd in beside.items() if sd]
        varies += f", and {listed(each)}, which more seeds do not lessen"
    return f"{found} in {metric}, judging {expected.source} ({varies})"
