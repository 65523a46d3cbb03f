"""Small numbers of variants, seeds, units and references."""

from typing import Any

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.float64]]
SMALL, LARGE, WORDS = "auc_small", "auc_large", "auc_unigram"


def parts(numbers: Numbers) -> dict[str, dict[str, dict[int, float]]]:
    """Name numbers by reference, variant and seed."""
    return {name: values_of(values) for name, values in zip((SMALL, LARGE, WORDS), numbers, strict=False)}


def simulated(
    rng: np.random.Generator, variants: int = 4, seeds: int = 5, planted: float = 0.0, noise: float = 0.004
) -> Numbers:
    """Return Float64[R V S]: random effects on the numbers of runs, without interaction of variant and reference.

    There are effects of references, seeds and variants, and interactions of seeds with references and variants.
    `planted` is a gain of the last variant by the last reference alone.
    """
    made: Numbers = 0.6 + rng.normal(0, 0.1, (3, 1, 1)) + rng.normal(0, 0.05, (1, variants, 1))
    made = made + rng.normal(0, 0.05, (1, 1, seeds)) + rng.normal(0, 0.02, (3, 1, seeds))
    made = made + rng.normal(0, 0.02, (1, variants, seeds)) + rng.normal(0, noise, (3, variants, seeds))
    made[-1, -1] += planted
    return made


def values_of(numbers: Numbers) -> dict[str, dict[int, Any]]:
    """Name Float64[V S], or the rows of Float64[V S U], by variant and seed."""
    return {f"v{i}": dict(enumerate(row)) for i, row in enumerate(numbers.tolist())}


def seeded(values: list[float]) -> dict[int, float]:
    return dict(enumerate(values))


def far(*means: float, seeds: int = 5, spread: float = 0.001) -> dict[str, dict[int, float]]:
    """Variants v0, v1, ... around these means, well apart or not by `spread`."""
    rng = np.random.default_rng(5)
    return values_of(np.array(means)[:, None] + spread * rng.normal(size=(len(means), seeds)))
