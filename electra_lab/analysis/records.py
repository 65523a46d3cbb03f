"""Facts from the records of a run."""

from collections.abc import Sequence
from typing import Any, TypeGuard

Records = Sequence[dict[str, Any]]
POINTS = 200  # of a curve, at most


def of_split(records: Records, split: str) -> list[dict[str, Any]]:
    return [record for record in records if record["split"] == split]


def points(records: Records, split: str, key: str) -> list[tuple[int, float]]:
    """Return the steps and the numbers of a key that the records of a split have."""
    return [(record["step"], record[key]) for record in of_split(records, split) if is_number(record.get(key))]


def curve(records: Records, split: str, key: str, axis: str) -> tuple[list[float], list[float]]:
    """Return the places and the values of a key over `step`, `tokens` or `flops` of training, thinned.

    The tokens and the FLOPs at an evaluation are interpolated from the training records.
    """
    import numpy as np  # here, as listings need none

    train = [(record["step"], record[axis]) for record in of_split(records, "train") if record.get(axis)]
    line = points(records, split, key)
    if not train or not line:
        return [], []
    # Thin the points, but keep the last one.
    last, every = line[-1], -(-len(line) // POINTS)
    line = line[::every] if every == 1 else [*line[::every], last]
    steps, numbers = zip((0, 0), *train, strict=True)
    places = np.interp([step for step, _ in line], steps, numbers)
    return places.tolist(), [value for _, value in line]


def last_evaluation(records: Records) -> dict[str, Any] | None:
    """Return the test record, whose numbers are the final ones; before the end of training, the last validation."""
    evaluations = of_split(records, "test") or of_split(records, "validation")
    return evaluations[-1] if evaluations else None


def training_seconds(records: Records) -> float | None:
    """Return the time spent in training steps, without evaluation: the tokens of each logged window over its rate.

    The window's own `seconds` would leave out the time before a resume. None if it is not known.
    """
    total, before = 0.0, 0
    for record in of_split(records, "train"):
        if not record.get("tokens_per_second") or not record.get("tokens"):
            return None
        total += (record["tokens"] - before) / record["tokens_per_second"]
        before = record["tokens"]
    return total or None


def last_number(records: Records, split: str, key: str) -> float | None:
    """Return a number of the last record of a split."""
    value = next((record.get(key) for record in reversed(records) if record["split"] == split), None)
    return float(value) if is_number(value) else None


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
