"""Downstream tasks: their data sets, rows and tables, and judgements of models."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from registry.contracts.data import Batch, Skipped, Vocabulary
from registry.contracts.objective import Term
from registry.contracts.training import Metric, Network

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class TextExample:
    """A text, or a pair of texts, with a label.

    label  word for classification, number for regression; None if it is unknown
    id     name in the benchmark, for files of predictions; by default the number in the split
    place  file:line, for errors
    """

    text: str
    pair: str | None = None
    label: str | float | None = None
    id: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class WordsExample:
    """The words of a sentence, each with a tag; `tags` is None if they are unknown."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    id: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A part of a context that begins at the character `start`."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class QuestionExample:
    """A question about a context.

    answers   all right answers; empty if the context does not have one
    labelled  False if the answers are unknown
    """

    question: str
    context: str
    answers: tuple[Answer, ...] = ()
    labelled: bool = True
    id: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class PairExample:
    """Two similar sentences, of which the first is acceptable and the second is not."""

    good: str
    bad: str
    paradigm: str = ""
    field: str = ""
    id: str = ""
    place: str = ""


AnyExample: TypeAlias = TextExample | WordsExample | QuestionExample | PairExample


def is_labelled(example: AnyExample) -> bool:
    """Return True if an example has a label, tags or answers; always for a pair."""
    if isinstance(example, QuestionExample):
        return example.labelled
    return getattr(example, "label", getattr(example, "tags", True)) is not None


class Dataset:
    """A source of examples. Registered as a class derived from this one: __init__(self, /, *, <options>).

    `@datasets.register(name, yields=TextExample)` declares the type of its examples. The constructor raises DataError
    if files are missing, and sets `splits`. Other members have defaults:

    splits   names: `train`, `validation`, `test`, or others, such as a second test
    skipped  by split, a `Skipped` for each row that the last `read` left out
    labels   names of all labels in an order, which models then have; available once a split was read
    """

    splits: Sequence[str] = ()
    skipped: Mapping[str, Sequence[Skipped]] = MappingProxyType({})
    labels: Sequence[str] = ()

    @staticmethod
    def fields(options: Mapping[str, Any]) -> Sequence[str] | None:
        """Return the names of the fields with the text and, for pairs, the second text; None if it has no fields."""
        return None

    def submission(self, split: str, predictions: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
        """Return name and content of the benchmark's file for these predictions; None if it takes no such split."""
        return None

    @abstractmethod
    def read(self, split: str) -> Iterator[Any]:
        """Yield the examples of a split in the order of the source. Raises DataError, at file:line."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash of the content, which changes whenever the examples change. Raises DataError."""


@dataclass(frozen=True)
class Encoded:
    """The tokens of a text, without special ones."""

    ids: list[int]
    offsets: list[tuple[int, int]]  # places in the text, in characters, without spaces, with dropped marks
    words: list[int]  # number of each token's word, counted from 0
    cut_left: bool = False  # True if long texts lose their beginning, by the model's tokenizer

    def cut(self, size: int) -> list[int]:
        """Return at most `size` of the ids."""
        return self.ids[max(0, len(self.ids) - size) :] if self.cut_left else self.ids[:size]


class Encoder(Protocol):
    """The model's tokenizer, as tasks see it."""

    vocabulary: Vocabulary

    def texts(self, texts: Sequence[str]) -> list[Encoded]:
        """Split texts into tokens; the tokenizer never joins a word with its neighbors."""

    def words(self, sentences: Sequence[Sequence[str]]) -> list[Encoded]:
        """Split words into tokens, each by itself; offsets are within the word. A word may have no token."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row that the network reads, of an example.

    tokens    ids, [CLS] and [SEP] included, at most `length` of the task
    segments  segment of each token, 0 or 1
    labels    numbers by name, one or one for each token; `losses` reads them in `batch.labels`, padded by -100
    keep      data of the task for turning the row's outputs into predictions
    """

    tokens: Sequence[int]
    segments: Sequence[int]
    labels: Mapping[str, float | Sequence[float]] = field(default_factory=dict)
    keep: Any = None


RowsOfExamples: TypeAlias = Sequence[Sequence[Row]]  # the rows of each example
OutputsOfExamples: TypeAlias = Sequence[Sequence[Mapping[str, Any]]]  # of each row of each example: arrays by name


@dataclass(frozen=True)
class Table:
    """A table of a report, such as a confusion matrix."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str | int | float]]


@dataclass(frozen=True)
class Results:
    """The result of a task on a split.

    metrics      numbers, by names that the task declares; empty if labels are unknown
    predictions  JSON values by name for each example, in their order. Always `id`, `prediction` and, if there is one,
                 `label`; also `correct` and `certainty`, a number, if the task has them
    """

    metrics: Mapping[str, float]
    predictions: Sequence[Mapping[str, Any]]
    tables: Sequence[Table] = ()


class Task:
    """A task to fine-tune for. Registered as a class derived from this one: __init__(self, /, *, <options>).

    `@tasks.register(name, takes=TextExample)` declares the type of its examples. Members with defaults:

    metrics     metrics by name, the most important one first
    exports_as  `ForSequenceClassification`, `ForTokenClassification` or `ForQuestionAnswering` if the head has the
                layers of transformers' class; they are called `out` (or `span`) and, before it, `dense`
    exports_if  options with which there is such a class, if there is none now
    layers      names of the layers in that class for the encoder: `out` (or `span`), `dense`, and for ModernBERT
                `transform.dense` and `transform.norm`; set before `head` is called
    average     average(outputs), which returns the outputs of an ensemble, from those of its models on the same batch;
                both are mappings of tensors, complete, before `kept`. None: there are no ensembles
    answers     answers(examples, rows, outputs), which returns the predictions for new examples, from complete outputs;
                `prediction` and further JSON values. None: those of `results`
    """

    metrics: Mapping[str, Metric] = MappingProxyType({})
    exports_as: str | None = None
    exports_if: str | None = None
    layers: Collection[str] = ()
    average: Callable[..., Mapping[str, Tensor]] | None = None
    answers: Callable[..., Sequence[Mapping[str, Any]]] | None = None

    def kept(self, outputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the outputs that `results` reads: those of a split are held in memory until its end."""
        return dict(outputs)

    def exported(self, head: nn.Module) -> nn.Module:
        """Return the layers to export instead of the head's, as transformers has no scales."""
        return head

    @abstractmethod
    def fit_labels(self, examples: Sequence[Any]) -> Mapping[str, Any]:
        """Return facts about the training examples, such as the labels: JSON values, stored with the model.

        Raises DataError for examples that cannot be learned. Every other method is called after `set_labels`,
        maybe on another instance.
        """

    @abstractmethod
    def set_labels(self, facts: Mapping[str, Any]) -> None:
        """Take the facts that `fit_labels` returned, now or in an earlier process."""

    @abstractmethod
    def rows(self, examples: Sequence[Any], encoder: Encoder, length: int) -> RowsOfExamples:
        """Return the rows of each example, at least one. Raises DataError, at file:line, for a label of another type.

        A label that `fit_labels` has not seen is not an error of the data: the example counts as a wrong prediction.
        Examples without labels have rows without labels.
        """

    @abstractmethod
    def truncation(self, examples: Sequence[Any], rows: RowsOfExamples) -> Mapping[str, float]:
        """Return metrics of the loss of information in rows, such as the share of the examples that were cut.

        They are also in `results`, if there are labels. Runs report them for all splits, that of training included.
        """

    @abstractmethod
    def head(self, dim: int, dropout: float) -> nn.Module:
        """Return the layers on top of states: forward(states Float[B T D], batch: Batch) -> Tensor.

        Or a mapping of tensors by name; a single one's name is `logits`. They are finite: for what cannot be chosen use
        a large negative number. Labels of the batch, if there are some, may change what `losses` reads and never what
        `results` reads.
        """

    @abstractmethod
    def losses(self, outputs: Mapping[str, Float[Tensor, "B ..."]], batch: Batch) -> Mapping[str, Term]:
        """Return the terms of the loss, from the outputs of the head in float32."""

    @abstractmethod
    def results(self, examples: Sequence[Any], rows: RowsOfExamples, outputs: OutputsOfExamples) -> Results:
        """Return metrics and predictions, from the outputs of each row of each example: numpy arrays.

        Outputs for each token are cut to the row's.
        """


@dataclass(frozen=True)
class Pretrained:
    """A pre-trained model as tasks without training see it; its networks are in eval mode.

    networks  networks by name, `discriminator` and `generator`; one or both
    heads     names of each network's heads: `replaced`, `tokens`
    length    length of the longest row that it was trained on
    """

    networks: Mapping[str, Network]
    heads: Mapping[str, Sequence[str]]
    encoder: Encoder
    length: int
    device: torch.device
    batch_size: int


class Judgement:
    """A task without training; `metrics` are as in Task. Registered as a class derived from this one, trains=False."""

    metrics: Mapping[str, Metric] = MappingProxyType({})

    @abstractmethod
    def __call__(self, examples: Sequence[Any], model: Pretrained) -> Results:
        """Judge a model without training. No gradients are recorded."""


AnyTask: TypeAlias = Task | Judgement
