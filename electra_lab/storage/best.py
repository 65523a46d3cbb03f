"""The best checkpoint of a run, by its records of validation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from electra_lab.storage.checkpoint import steps
from electra_lab.storage.provenance import compared
from electra_lab.storage.run_directory import RunDirectory
from registry import Metric
from registry.errors import CheckpointError

AUTO, OFF = "auto", "off"  # values of checkpoint.best; any other one is the name of a metric
Step = int | Literal["best"] | None  # of a checkpoint; None is the newest

Record = Mapping[str, Any]


@dataclass(frozen=True, order=True)
class Best:
    """A step by the validation value of a metric; the best and then the earliest is the smallest."""

    rank: float  # the value, negated if higher is better
    step: int
    metric: str
    value: float


def ranked(records: Sequence[Record], chosen: str | None, metrics: Mapping[str, Metric]) -> list[Best]:
    """Return the validations that have a value of the chosen metric."""
    validated = [record for record in records if record["split"] == "validation"]
    if chosen == AUTO:
        chosen = next(iter(compared(metrics, validated[0])), None) if validated else None
    if chosen is None or chosen not in metrics:
        return []
    sign, found = -1 if metrics[chosen].higher_is_better else 1, list[Best]()
    for record in validated:
        if (value := record.get(chosen)) is not None:
            found.append(Best(sign * value, record["step"], chosen, value))
    return found


def best_checkpoint(directory: RunDirectory) -> Best | None:
    """Return the best checkpoint that a run of pre-training keeps. Raises CheckpointError if its files are damaged."""
    provenance = directory.provenance()
    chosen = provenance.config.get("checkpoint", {}).get("best")
    kept = steps(directory.checkpoints)
    return min((b for b in ranked(directory.records(), chosen, provenance.metrics) if b.step in kept), default=None)


def best_step(directory: RunDirectory) -> int:
    """Return the step of the best checkpoint. Raises CheckpointError if the run keeps none."""
    if (best := best_checkpoint(directory)) is None:
        raise CheckpointError(
            f"{directory.path}: keeps no best checkpoint: none of its checkpoints has a validation value of the metric "
            "in checkpoint.best. Set evaluate.every and checkpoint.best before training; until then, name a step."
        )
    return best.step
