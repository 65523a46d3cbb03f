"""Metrics of labels and numbers, including those of GLUE, by scikit-learn and scipy."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from registry import Metric, Table
from registry.contracts.training import CORRELATION, SHARE
from registry.errors import DataError

T = TypeVar("T")
IGNORED = -100  # a label that no training example has, which the loss leaves out
MOST_LABELS, MOST_PAIRS = 30, 50  # in tables
NUMBER = re.compile(r"-?\d+(\.\d+)?")

Share, _Correlation = partial(Metric, bounds=SHARE), partial(Metric, bounds=CORRELATION)
_LABELS: Mapping[str, Metric] = {
    "accuracy": Share("share of the examples that get the right label", "accuracy"),
    "f1": Share("F1 of the label that comes last if there are two; otherwise the mean over labels", "F1"),
    "matthews": _Correlation("Matthews correlation of predictions and labels", "Matthews correlation"),
}
_NUMBERS: Mapping[str, Metric] = {
    "pearson": _Correlation("Pearson correlation of predictions and labels", "Pearson correlation"),
    "spearman": _Correlation("Spearman rank correlation of predictions and labels", "Spearman correlation"),
}
UNSEEN_METRIC: Mapping[str, Metric] = {
    "unseen_labels": Metric("share of the labels that no training example has: errors", "unseen labels", "", False)
}


def constants(values: Mapping[str, T]) -> dict[str, T]:
    """Return values of constant answers by the names of their baselines: `constant_` and the metric."""
    return {f"constant_{name}": value for name, value in values.items()}


def over_constant(metrics: Mapping[str, Metric], answer: str) -> dict[str, Metric]:
    """Return metrics with their baselines: the same metrics of always giving one answer."""
    summary = f"the same of always answering {answer}"
    against = {name: replace(metric, baselines=(*constants({name: 0}),)) for name, metric in metrics.items()}
    trivial = {name: Metric(summary, f"{metric.title} of {answer}") for name, metric in metrics.items()}
    return against | constants(trivial)


CLASSIFICATION = over_constant(_LABELS, "the label that is best for this metric")
REGRESSION = over_constant(_NUMBERS, "the mean")


def in_order(labels: Iterable[str]) -> list[str]:
    """Return labels sorted, as numbers if all are numbers. Raises DataError if two are the same number."""
    names = sorted(labels)
    if not all(NUMBER.fullmatch(name) for name in names):
        return names
    names.sort(key=float)
    for one, other in pairwise(names):
        if float(one) == float(other):
            raise DataError(f"the labels '{one}' and '{other}' are the same number. Write it in one way.")
    return names


def unseen_share(unseen: Sequence[bool]) -> dict[str, float]:
    """Return the share of the labels that no training example has, if there are any."""
    return {"unseen_labels": sum(unseen) / len(unseen)} if any(unseen) else {}


def classification(labels: NDArray[Any], predictions: NDArray[Any], number: int) -> dict[str, float]:
    """Return the metrics of labels 0 to `number` - 1. With two of them, F1 is that of label 1, as in GLUE.

    The mean of F1 leaves out labels that occur neither as label nor as prediction. F1 is 0 if nothing is found, and
    Matthews correlation is 0 if all labels or all predictions are equal.
    """
    from sklearn.metrics import accuracy_score, f1_score

    asked = [1] if number == 2 else None
    return {
        "accuracy": float(accuracy_score(labels, predictions)),
        "f1": float(f1_score(labels, predictions, labels=asked, average="macro", zero_division=0)),
        "matthews": _matthews(labels, predictions),
    }


def best_constant(labels: NDArray[Any], number: int) -> dict[str, float]:
    """Return the best of each metric over all constant answers; without the mean of F1 over three labels and more.

    Guessing at random reaches more than any constant answer there.
    """
    best = dict[str, float]()
    for label in range(number):
        values = classification(labels, np.full_like(labels, label), number)
        best = {name: max(value, best.get(name, value)) for name, value in values.items()}
    return {name: value for name, value in best.items() if name != "f1" or number <= 2}


def _matthews(labels: NDArray[Any], predictions: NDArray[Any]) -> float:
    """Return Matthews correlation as scikit-learn computes it, without its table of all pairs of labels."""
    number = max(labels.max(), predictions.max()) + 1
    actual = np.bincount(labels, minlength=number).astype(np.float64)
    predicted = np.bincount(predictions, minlength=number).astype(np.float64)
    total, right = float(len(labels)), float(np.sum(labels == predictions))
    spread = (total**2 - predicted @ predicted) * (total**2 - actual @ actual)
    return float((right * total - actual @ predicted) / np.sqrt(spread)) if spread else 0.0


def confusion(labels: NDArray[Any], predictions: NDArray[Any], names: Sequence[str]) -> Table:
    """Return the counts of each label and prediction; of many labels, the pairs that are confused most."""
    from sklearn.metrics import confusion_matrix

    if len(names) > MOST_LABELS:
        wrong = Counter(zip(labels.tolist(), predictions.tolist(), strict=True))
        pairs = [(names[label], names[guess], count) for (label, guess), count in wrong.items() if label != guess]
        pairs.sort(key=lambda pair: (-pair[2], pair))
        return Table("Labels confused most", ["label", "prediction", "examples"], pairs[:MOST_PAIRS])
    counts = confusion_matrix(labels, predictions, labels=range(len(names))).tolist()
    rows = [[name, *row] for name, row in zip(names, counts, strict=True)]
    return Table("Labels (rows) and predictions (columns)", ["", *names], rows)


def regression(labels: NDArray[Any], predictions: NDArray[Any]) -> dict[str, float]:
    """Return the correlations; 0 if all labels or all predictions are equal."""
    from scipy.stats import pearsonr, spearmanr

    if np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return dict.fromkeys(_NUMBERS, 0.0)
    return {
        "pearson": float(pearsonr(labels, predictions).statistic),
        "spearman": float(spearmanr(labels, predictions).statistic),
    }
