"""The best checkpoint of a run, by its records of validation."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from electra_lab.storage.checkpoint import steps
from electra_lab.storage.run_directory import RunDirectory
from registry import Metric
from registry.errors import CheckpointError

AUTO, OFF = "auto", "off"  # values of checkpoint.best; any other one is the name of a metric
Step = int | Literal["best"] | None  # of a checkpoint; None is the newest

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Best:
    """The best checkpoint of a run, by the validation value of a metric."""

    step: int
    metric: str
    value: float


def leading(metrics: Mapping[str, Metric], record: Record) -> str | None:
    """Return the first metric of a record that compares the steps of a run; baselines are constants."""
    baselines = set(chain.from_iterable(metric.baselines for metric in metrics.values()))
    for name, metric in metrics.items():
        if metric.comparable and name not in baselines and record.get(name) is not None:
            return name
    return None


def ranked(
    records: Sequence[Record], chosen: str | None, metrics: Mapping[str, Metric]
) -> Iterator[tuple[float, Best]]:
    """Yield each validation with a value of the chosen metric, after its value, negated if higher is better."""
    validated = [record for record in records if record["split"] == "validation"]
    if chosen == AUTO:
        chosen = leading(metrics, validated[0]) if validated else None
    if chosen is None or chosen not in metrics:
        return
    sign = -1 if metrics[chosen].higher_is_better else 1
    for record in validated:
        if (value := record.get(chosen)) is not None:
            yield sign * value, Best(record["step"], chosen, value)


def best_of(
    records: Sequence[Record], kept: Collection[int], chosen: str | None, metrics: Mapping[str, Metric]
) -> Best | None:
    """Return the best of the kept steps, the earliest of equals; None if none has a value."""
    found = [(value, best.step, best) for value, best in ranked(records, chosen, metrics) if best.step in kept]
    return min(found, key=lambda each: each[:2])[2] if found else None


def best_checkpoint(directory: RunDirectory) -> Best | None:
    """Return the best checkpoint that a run of pre-training keeps. Raises CheckpointError if its files are damaged."""
    provenance = directory.provenance()
    chosen = provenance.config.get("checkpoint", {}).get("best")
    return best_of(directory.records(), steps(directory.checkpoints), chosen, provenance.metrics)


def best_step(directory: RunDirectory) -> int:
    """Return the step of the best checkpoint. Raises CheckpointError if the run keeps none."""
    if (best := best_checkpoint(directory)) is None:
        raise CheckpointError(
            f"{directory.path}: keeps no best checkpoint: none of its checkpoints has a validation value of the metric "
            "in checkpoint.best. Set evaluate.every and checkpoint.best before training; until then, name a step."
        )
    return best.step
