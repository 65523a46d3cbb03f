"""The lab around a training: measures that compare runs, launchers, trackers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from registry.contracts.data import Batch, Vocabulary
from registry.contracts.training import Metric, Network


class MetricWithDocuments(float):
    """A metric of a sample of documents, with the contribution of each document.

    documents  jackknife's pseudo-values, n value - (n - 1) (value without the document), in the same order for all
               cells. Intervals then include the variance over documents
    """

    documents: tuple[float, ...]

    def __new__(cls, value: float, documents: Iterable[float]) -> Self:
        metric = super().__new__(cls, value)
        metric.documents = tuple(map(float, documents))
        return metric


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

    metrics      metrics by name, the most important one first; they may depend on the options. One that a run does not
                 have is left out of its numbers
    same_rows    True if the cells must read the same rows: equal corpus, tokenizer and data
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


Command = Sequence[str]


@dataclass(frozen=True)
class Outcome:
    """The end of a command.

    code   exit code; negative: the signal that ended it; None: not known, as its machine was lost
    error  one sentence on what happened, if the code is not 0
    """

    code: int | None
    error: str = ""


class Launcher(Protocol):
    """Run independent commands, on this machine or on others that see the folder.

    Registered as a class: __init__(self, /, *, workers, threads, <options>).

    here  True if the commands run on this machine and its devices
    """

    here: bool

    def check(self) -> None:
        """Raise ConfigError if a requirement of the launcher is missing."""

    def __call__(self, commands: Mapping[str, Command], folder: Path, /) -> Iterator[tuple[str, Outcome]]:
        """Run each command once in a separate process, at most `workers` at a time.

        Yields the name and the outcome of each as soon as it ends. What it prints is appended to logs/NAME.txt in the
        folder. A command that fails does not stop the others. Closing the iterator (or Ctrl-C, or SIGTERM) sends those
        that run a SIGTERM, and waits for them.
        """


Ended = Literal["done", "stopped", "failed"]


@dataclass(frozen=True)
class Tracked:
    """A run, as trackers see it."""

    name: str  # names of its experiment and its folder
    group: str  # the name of its experiment, fine-tuning or ablation
    folder: Path  # the run directory
    config: Mapping[str, Any]  # the complete config, as plain values
    step: int  # reached so far: 0 for a new run
    id: str | None  # returned by an earlier `start` of this run


class Tracker(Protocol):
    """Send the records of a run elsewhere. Registered as a class: __init__(self, /, *, <options>).

    It may raise any exception at any time: the run continues without it, and tries it again when it is resumed. It must
    not print, handle signals or end the process, and must not import its libraries before `start`.

    rewinds  True if the tracker drops the records of later steps and receives them again when a run that was killed
             goes back to its last checkpoint; False if it never receives a record twice
    """

    rewinds: bool

    def check(self) -> None:
        """Raise ConfigError if a library that the tracker needs is missing here."""

    def start(self, run: Tracked, /) -> str:
        """Begin a run, or continue the one with `run.id`. Returns its id."""

    def record(self, step: int, values: Mapping[str, float], /) -> None:
        """Take the record of a step: finite numbers by names such as `train/loss` and `validation/loss`.

        Steps never decrease, except after a rewind.
        """

    def close(self, outcome: Ended, /) -> None:
        """End the run, or this part of it if it was `stopped`. Called once after `start`, unless a call has failed."""
