"""Measures: the metrics by which the cells of an ablation are compared."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from registry.contracts.data import Batch, Vocabulary
from registry.contracts.metric import Metric
from registry.contracts.network import Network


class MetricWithDocuments(float):
    """A metric of a sample of documents, with the contribution of each document.

    documents  the jackknife's pseudo-values, n value - (n - 1) (value without the document), in the same order for all
               cells. Intervals then include the variance over documents
    """

    documents: tuple[float, ...]

    def __new__(cls, value: float, documents: Iterable[float]) -> Self:
        made = super().__new__(cls, value)
        made.documents = tuple(map(float, documents))
        return made


@dataclass(frozen=True)
class Trained:
    """A finished run, as measures see it."""

    model: Network  # in eval mode, with the final weights
    detects: bool  # the model detects replaced tokens; otherwise it predicts tokens
    test: Callable[[int], Iterable[Batch]]  # test(n): the test rows in a fixed order, n at a time
    train: Callable[[int, Sequence[int]], Iterable[Batch]]  # train(n, rows): these rows of the training split
    train_rows: int  # number of rows of the training split
    vocabulary: Vocabulary
    metrics: Mapping[str, Any]  # the test record of its metrics.jsonl
    # finetune(file): the leading metric of a fine-tuning file with this run as its model, the mean over its seeds
    finetune: Callable[[Path], float]
    declared: Mapping[str, Metric] = field(default_factory=dict)  # by its objective alone; `metrics` has their values


class Measure(Protocol):
    """A component that compares the cells of an ablation. Registered as a class: __init__(self, /, *, <options>).

    metrics      by name, the most important one first; they may depend on the options. A metric that a run does not
                 have is left out of its numbers
    same_rows    the cells must read the same rows: equal corpus, tokenizer and data
    finetunings  optional: paths of the fine-tuning files that it uses, which are checked before training
    """

    same_rows: bool

    @property
    def metrics(self) -> Mapping[str, Metric]: ...

    def references(self, base: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        """Return, by a short name, sections that replace those of the base's complete config.

        Each is an extra experiment that is trained only for this measure, for as many steps as the base unless `train`
        is among the sections. Empty if the measure needs none.
        """

    def prepare(self, run: Trained, references: Mapping[str, Trained], folder: Path) -> None:
        """Write data shared by all cells into `folder`. Called once, with any one of the cells."""

    def __call__(self, run: Trained, folder: Path) -> Mapping[str, float]:
        """Return the metrics of a run. Called without gradients, under autocast if the run used it.

        A MetricWithDocuments also has the contribution of each document.
        """
