"""The power of an ablation: the smallest difference that it finds with a probability of 80 %."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import nctdtrinc, stdtrit

from electra_lab.analysis.comparisons import PRIMARY
from electra_lab.analysis.intervals import ALPHA, ENOUGH, Difference, Layer, smallest_found

POWER = 0.8


@dataclass(frozen=True)
class Spread:
    """The spread of paired differences between two variants with the same seed, and its source.

    shared  variance that shared units, such as documents, add to the difference of one seed, by kind
    """

    sd: float
    source: str
    shared: Mapping[str, Layer] = field(default_factory=dict)


def spread(differences: Iterable[Difference], source: str) -> Spread | None:
    """Return the variation of paired differences, pooled over those with an interval; None if none has one."""
    measured = [(d, d.error**2) for d in differences if d.error is not None]
    if not measured:
        return None
    kinds: dict[str, list[tuple[Difference, float, Layer]]] = {}
    for d, square in measured:
        for name, layer in d.layers.items():
            kinds.setdefault(name, []).append((d, square, layer))
    weights = [d.n - 1 for d, _ in measured]  # degrees of freedom
    variance = float(np.average([square * d.n for d, square in measured], weights=weights))
    shared = {name: _pooled(layers) for name, layers in kinds.items()}
    return Spread(sd=math.sqrt(variance), source=source, shared=shared)


def _pooled(layers: Sequence[tuple[Difference, float, Layer]]) -> Layer:
    variance = float(np.mean([layer.beyond * square for _, square, layer in layers]))
    noise = float(np.mean([layer.noise * square * d.n for d, square, layer in layers]))
    return Layer(min(layer.units for _, _, layer in layers), variance + noise, noise)


def detectable(seeds: int, comparisons: int) -> float | None:
    """Return the smallest difference that is found, in standard deviations of paired differences between seeds.

    The paired t test with this many seeds calls it distinguishable with a probability of 80 %, at the level that Holm's
    procedure begins with. None for fewer seeds than are tested.
    """
    if seeds < ENOUGH or comparisons < 1:
        return None
    limit = stdtrit(seeds - 1, 1 - _level(comparisons) / 2)
    return float(nctdtrinc(seeds - 1, 1 - POWER, limit)) / math.sqrt(seeds)


def _level(comparisons: int) -> float:
    return ALPHA * PRIMARY / comparisons


def smallest(spread: Spread, seeds: int, comparisons: int) -> float | None:
    """Return the smallest difference that is found, in the metric's unit; None for fewer seeds than are tested."""
    size = detectable(seeds, comparisons)
    if size is None:
        return None
    if not spread.shared:
        return size * spread.sd
    layers = []
    for shared in spread.shared.values():
        noise = shared.noise / seeds
        layers.append(Layer(shared.units, shared.beyond + noise, noise))
    return smallest_found(_level(comparisons), POWER, seeds, spread.sd**2 / seeds, layers)
