"""Small numbers of variants, seeds and units."""

from typing import Any

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.float64]]


def values_of(numbers: Numbers) -> dict[str, dict[int, Any]]:
    """Name Float64[V S], or the rows of Float64[V S U], by variant and seed."""
    return {f"v{i}": dict(enumerate(row)) for i, row in enumerate(numbers.tolist())}


def seeded(values: list[float]) -> dict[int, float]:
    return dict(enumerate(values))


def far(*means: float, seeds: int = 5, spread: float = 0.001) -> dict[str, dict[int, float]]:
    """Variants v0, v1, ... around these means, well apart or not by `spread`."""
    rng = np.random.default_rng(5)
    return values_of(np.array(means)[:, None] + spread * rng.normal(size=(len(means), seeds)))
