"""Measures: the metrics by which the cells of an ablation are compared."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from registry.contracts.data import Batch, Vocabulary
from registry.contracts.metric import Metric
from registry.contracts.network import Network


class Sampled(float):
    """A metric that other documents would give another value of, and what each document contributes to it.

    documents  the jackknife's pseudo-values, n value - (n - 1) (value without the document), in an order that is the
               same for all cells. Intervals then include that another test text would have other documents
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
    train_rows: int  # how many it has
    vocabulary: Vocabulary
    metrics: Mapping[str, Any]  # the test record of its metrics.jsonl
    # finetune(file): the leading metric of a fine-tuning file with this run as its model, the mean over its seeds
    finetune: Callable[[Path], float]


class Measure(Protocol):
    """A component that compares the cells of an ablation. Registered as a class: __init__(self, /, *, <options>).

    metrics    by name, the most important one first; they may depend on the options. A metric that a run does not have
               is left out of its numbers. A higher value is better unless the metric says otherwise
    same_rows  the cells must read the same rows: equal corpus, tokenizer and data
    finetunings  optional: the paths of the fine-tuning files that it uses, which are checked before anything is trained
    """

    same_rows: bool

    @property
    def metrics(self) -> Mapping[str, Metric]: ...

    def references(self, base: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        """Return, by a short name, sections that replace those of the base's complete config.

        Each makes one more experiment, which is trained for this measure alone, for as many steps as the base unless
        `train` is among the sections. Empty if the measure needs none.
        """

    def prepare(self, run: Trained, references: Mapping[str, Trained], folder: Path) -> None:
        """Write into `folder` what all cells share. Called once, with any one of the cells."""

    def __call__(self, run: Trained, folder: Path) -> Mapping[str, float]:
        """Return the metrics of a run. No gradients are recorded; autocast is on if the run used it.

        A number that is Sampled tells what each document contributes to it.
        """
