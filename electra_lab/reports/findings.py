"""The findings of a run: its last evaluation, next to the baselines."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from registry import Metric


@dataclass(frozen=True)
class Finding:
    """A metric's value, and the sentence that says how to read it."""

    title: str
    value: float | None
    meaning: str


def declared(metrics: Mapping[str, Metric]) -> Mapping[str, Metric]:
    """Return the metrics that a run declared; those of pre-training for a run of an older version, which did not."""
    if metrics:
        return metrics
    from electra_lab.metrics import PRETRAINING

    return PRETRAINING


def heading(metric: Metric) -> str:
    """Return the title of a metric's chart."""
    return f"{metric.title[:1].upper()}{metric.title[1:]}{f', {metric.unit}' if metric.unit else ''}"


def findings(record: Mapping[str, Any], metrics: Mapping[str, Metric]) -> list[Finding]:
    """Return the metrics of an evaluation in the order of their declaration; baselines are part of a meaning."""
    metrics = declared(metrics)
    baselines = {name for metric in metrics.values() for name in metric.baselines}
    found = []
    for name, metric in metrics.items():
        if name in record and name not in baselines:
            unit = f", in {metric.unit}" if metric.unit else ""
            known = [each for each in metric.baselines if each in record]
            beside = ", ".join(f"{metrics[each].title} {number(record[each]).strip()}" for each in known)
            meaning = f"{metric.summary}{unit}{f'; {beside}' if beside else ''}"
            found.append(Finding(metric.title or name, record[name], meaning))
    return found


def number(value: float | None) -> str:
    return f"{value:7.3f}" if value is not None else "      -"
