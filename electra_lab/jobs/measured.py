"""A run as measures see it, and the numbers that a measure returns."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch

from electra_lab.analysis.records import of_split
from electra_lab.data.rows import Rows
from electra_lab.jobs.pretraining import execute
from electra_lab.metrics import PRETRAINING
from electra_lab.storage.files import damage, new_folder, read_text, seal
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training.execution import autocast
from registry import Accumulator, Batch, Entry, Metric, MetricWithDocuments, Trained
from registry.errors import BadResult

KEY = "key.txt"  # in the folder that all runs share for a measure


def as_measured(
    directory: RunDirectory, device: str, finetune: Callable[[Path], float]
) -> tuple[Trained, Callable[[], Any]]:
    """Return a run as measures see it, and a context with its precision."""
    loaded, experiment = execute.reopen(directory.path, device)
    experiment.run.learner.objective.eval()
    tested = of_split(directory.records(), "test")
    trained = Trained(
        model=experiment.model,
        detects="replaced" in loaded.config.needs.heads,
        test=partial(experiment.test.in_order, device=experiment.device),
        train=partial(_rows, experiment.train, experiment.device),
        train_rows=len(experiment.train),
        vocabulary=experiment.vocabulary,
        metrics=tested[-1] if tested else {},
        finetune=finetune,
        declared=declared_alone(experiment.accumulate),
    )
    return trained, partial(autocast, experiment.device, experiment.settings.precision)


def reference(base: Mapping[str, Any], name: str, sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a run that a measure needs for itself; it does not start from weights of the base."""
    init = {"distribution": base["init"]["distribution"], **sections.get("init", {})}
    return {**base, "name": name, **sections, "init": init}


def shared_damage(shared: Path, key: str) -> str | None:
    """Return the damage to the folder that all runs share for a measure, in words; None if it is sound."""
    reason = damage(shared)
    return reason or (None if (shared / KEY).is_file() and read_text(shared / KEY) == key else "is not of this measure")


def prepare(
    measure: Any, key: str, final: Path, run: Trained, references: Mapping[str, Trained], precision: Callable[[], Any]
) -> None:
    """Make the folder that all runs share for a measure, whole or not at all, with the key of the measure."""
    with new_folder(final) as building:
        (building / KEY).write_text(key, encoding="utf-8")
        with torch.no_grad(), precision():
            measure.prepare(run, references, building)
        seal(building)


def measured(
    entry: Entry[Any], measure: Any, run: Trained, precision: Callable[[], Any], shared: Path
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Measure a run; returns the finite numbers, and the contributions of documents to them. Raises BadResult."""
    with torch.no_grad(), precision():
        result: object = measure(run, shared)
    return numbers_of(entry, {**measure.metrics, **run.declared}, result)


def _rows(text: Rows, device: torch.device, size: int, rows: Sequence[int]) -> Iterator[Batch]:
    """Yield these rows, `size` at a time; a row's number is its example id."""
    for start in range(0, len(rows), size):
        numbers = np.array(rows[start : start + size], dtype=np.int64)
        yield text.batch(numbers, numbers, device)


def numbers_of(
    entry: Entry[Any], metrics: Mapping[str, Metric], result: object
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return the finite numbers, and the contributions of documents to them. Raises BadResult."""
    returned = f"{entry.place}: measure '{entry.name}' returned"
    if not isinstance(result, Mapping) or not all(isinstance(value, Real) for value in result.values()):
        raise BadResult(f"{returned} {result!r:.80}, must be numbers by their names.")
    if unknown := sorted(result.keys() - metrics.keys()):
        raise BadResult(f"{returned} {unknown[0]}, which it does not declare.")
    documents = {}
    for name, value in result.items():
        by_document = list(value.documents) if isinstance(value, MetricWithDocuments) else []
        if by_document and all(map(math.isfinite, by_document)):
            documents[name] = by_document
    return {name: float(value) for name, value in result.items() if math.isfinite(value)}, documents


def declared_alone(accumulate: Callable[[Collection[int]], Accumulator]) -> dict[str, Metric]:
    """Return the metrics that an objective declares in addition to those of all pre-training."""
    return {name: metric for name, metric in accumulate(()).metrics.items() if name not in PRETRAINING}
