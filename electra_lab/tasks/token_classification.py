"""Tags for words: named entities, chunks, parts of speech."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import chain, product
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.tasks._averages import mean_logits
from electra_lab.tasks._classification import (
    IGNORED,
    UNSEEN_METRIC,
    Share,
    constants,
    in_order,
    over_constant,
    unseen_share,
)
from electra_lab.tasks._texts import Head, chosen_layers, transform_of
from electra_lab.tasks._windows import windows
from registry import Batch, Encoded, Encoder, Metric, Results, Row, Table, Task, Term, WordsExample, tasks
from registry.contracts.tasks import OutputsOfExamples, RowsOfExamples
from registry.errors import DataError, listed

USUAL = "the usual tag"  # of words without tokens, too
ENTITY_TAG = re.compile(r"O|[BIES](-.+)?")
IN_BIOES = str.maketrans("LUM", "ESI")

Entity = tuple[str, int, int]  # its type, and its first and last word


@dataclass(frozen=True)
class Counts:
    """Numbers of entities, of predictions, and of predictions with the right words and type."""

    actual: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float:
        return self.correct / max(self.predicted, 1)

    @property
    def recall(self) -> float:
        return self.correct / max(self.actual, 1)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall; 0 if there is nothing to find and nothing was predicted."""
        return 2 * self.correct / max(self.actual + self.predicted, 1)


def entities(tags: Sequence[str]) -> set[Entity]:
    """Return the entities of a sentence as the script of the CoNLL shared tasks, conlleval, counts them.

    An entity begins wherever the type changes, even without a B. BILOU and BMES are BIOES with other letters.
    """
    from seqeval.metrics.sequence_labeling import get_entities

    return set(get_entities([tag[:1].translate(IN_BIOES) + tag[1:] for tag in tags]))


def single_words(tags: Sequence[str]) -> set[Entity]:
    """Return each word as an entity whose type is its tag."""
    return {(tag, place, place) for place, tag in enumerate(tags)}


def compare(actual: Iterable[set[Entity]], predicted: Iterable[set[Entity]]) -> dict[str, Counts]:
    """Compare the entities of sentences, by type."""
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])  # as in Counts
    for right, guessed in zip(actual, predicted, strict=True):
        for column, group in enumerate((right, guessed, right & guessed)):
            for kind, *_ in group:
                counts[kind][column] += 1
    return {kind: Counts(*numbers) for kind, numbers in sorted(counts.items())}


def total(by_type: Iterable[Counts]) -> Counts:
    """Return the counts over all types."""
    columns = zip((0, 0, 0), *map(astuple, by_type), strict=True)
    return Counts(*map(sum, columns))


class EachState(nn.Module):
    """Dropout and a linear layer on the state of each token; before them, those of `transform_of`."""

    def __init__(self, dim: int, outputs: int, dropout: float, layers: Collection[str] = ()) -> None:
        super().__init__()
        self.dropout, self.out = nn.Dropout(dropout), nn.Linear(dim, outputs)
        self.transform = transform_of(dim, layers)

    def forward(self, states: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B T O"]:
        if self.transform is not None:
            states = self.transform.transformed(states)
        logits: Tensor = self.out(self.dropout(states))
        return logits


@tasks.register("token_classification", takes=WordsExample, initialized_by_lab=True)
class TokenClassification(Task):
    """A tag for each word, predicted at the word's first token, as in google-research/electra.

    The head is dropout and a linear layer, unless `head` says otherwise. Sentences that are longer than a row are read
    in windows; each word is trained and predicted once, in the window where it has the most context. The tags are those
    of the training examples and, for entities, their counterparts such as I-X for B-X; words with others count as
    errors. A word without tokens, whose characters the tokenizer drops, is tagged O or, if that is not a tag, with the
    most frequent one. The report counts both.

    scheme  entities  tags are IOB1, IOB2 or BIOES; entities are counted as by conlleval and by seqeval's default
            plain     tags are judged one by one, such as parts of speech
    stride  tokens from one window to the next; at most half a row
    head    linear, the default: dropout and a linear layer; transformers: the layers of transformers' class for the
            encoder, which are the same except for ModernBERT
    """

    exports_as = "ForTokenClassification"
    exports_if = "head: transformers"
    layers = ("out",)
    metrics = {  # noqa: RUF012
        **over_constant({"f1": Share("harmonic mean of precision and recall", "entity F1")}, USUAL),
        "precision": Share("share of the predicted entities that have the right words and type", "entity precision"),
        "recall": Share("share of the entities that are predicted with the right words and type", "entity recall"),
        **over_constant({"accuracy": Share("share of the words that get the right tag", "tag accuracy")}, USUAL),
        "dropped_words": Metric("share of the words that have no token", "dropped words", higher_is_better=False),
        **UNSEEN_METRIC,
    }

    def __init__(
        self,
        /,
        *,
        scheme: Literal["entities", "plain"] = "entities",
        stride: Annotated[int, Field(gt=0, le=10**9)] = 128,
        head: Literal["linear", "transformers"] | None = None,
    ) -> None:
        self.scheme, self.stride = scheme, stride
        self.chosen: Head = head or "linear"
        if scheme == "plain":
            of_words = ("accuracy", "constant_accuracy", "dropped_words", *UNSEEN_METRIC)
            self.metrics = {name: self.metrics[name] for name in of_words}

    def fit_labels(self, examples: Sequence[WordsExample]) -> Mapping[str, Any]:
        counts: Counter[str] = Counter()
        wrong = []
        for example in examples:
            place = example.place or example.id
            if example.tags is None:
                wrong.append(f"{place}: the sentence has no tags. Training needs them.")
                continue
            counts.update(example.tags)
            odd = [tag for tag in example.tags if not ENTITY_TAG.fullmatch(tag)]
            if odd and self.scheme == "entities":
                reason = f"the tag '{odd[0]}' is neither O nor B-, I-, E- or S- with a type"
                wrong.append(f"{place}: {reason}. For tags of other kinds write scheme: plain.")
        if wrong:
            raise DataError(listed(wrong))
        if not counts:
            raise DataError("there are no words to learn tags from.")
        tags = counts.keys() | _with_counterparts(counts) if self.scheme == "entities" else counts.keys()
        usual = "O" if self.scheme == "entities" and "O" in counts else max(sorted(counts), key=counts.__getitem__)
        return {"tags": in_order(tags), "usual": usual}

    def set_labels(self, facts: Mapping[str, Any]) -> None:
        self.tags, self.usual = list(facts["tags"]), str(facts["usual"])

    def rows(self, examples: Sequence[WordsExample], encoder: Encoder, length: int) -> Sequence[Sequence[Row]]:
        encoded = encoder.words([example.words for example in examples])
        return [self._rows(example, text, encoder, length) for example, text in zip(examples, encoded, strict=True)]

    def _rows(self, example: WordsExample, text: Encoded, encoder: Encoder, length: int) -> list[Row]:
        cls, sep = encoder.vocabulary.cls_id, encoder.vocabulary.sep_id
        firsts = {word: place for place, word in reversed([*enumerate(text.words)])}
        numbers = {tag: number for number, tag in enumerate(self.tags)}
        labels = None if example.tags is None else [numbers.get(tag, IGNORED) for tag in example.tags]
        rows = []
        for window in windows(len(text.ids), length - 2, self.stride):
            tokens = [cls, *text.ids[window.first : window.end], sep]
            # The words to predict, by the positions of their first tokens in the row.
            words = {1 + place - window.first: word for word, place in firsts.items() if place in window.best}
            targets: dict[str, list[float]] = {}
            if labels is not None:
                targets = {"tags": [IGNORED] * len(tokens)}
                for place, word in words.items():
                    targets["tags"][place] = labels[word]
            rows.append(Row(tokens, [0] * len(tokens), targets, words))
        return rows

    def truncation(self, examples: Sequence[WordsExample], rows: RowsOfExamples) -> Mapping[str, float]:
        words = sum(len(example.words) for example in examples)
        judged = sum(len(row.keep) for row in chain.from_iterable(rows))
        tags = chain.from_iterable(example.tags or () for example in examples)
        learned = {*self.tags}
        unseen = [tag not in learned for tag in tags]
        return {"dropped_words": (words - judged) / max(words, 1), **unseen_share(unseen)}

    def head(self, dim: int, dropout: float) -> nn.Module:
        return EachState(dim, len(self.tags), dropout, chosen_layers(self.chosen, self.layers))

    def losses(self, outputs: Mapping[str, Float[Tensor, "B ..."]], batch: Batch) -> Mapping[str, Term]:
        labels = batch.labels["tags"]
        loss = F.cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
        return {"tags": Term(loss, (labels != IGNORED).sum(), 1.0)}

    def results(self, examples: Sequence[WordsExample], rows: RowsOfExamples, outputs: OutputsOfExamples) -> Results:
        predictions = [self._predicted(*of_example) for of_example in zip(examples, rows, outputs, strict=True)]
        if any(example.tags is None for example in examples):
            return Results({}, predictions)
        # Words.
        actual = [prediction["label"] for prediction in predictions]
        predicted = [prediction["prediction"] for prediction in predictions]
        pairs = list(zip(chain.from_iterable(actual), chain.from_iterable(predicted), strict=True))
        right = sum(label == guess for label, guess in pairs)
        usual = sum(label == self.usual for label, _ in pairs)
        accuracy, constant = right / max(len(pairs), 1), {"accuracy": usual / max(len(pairs), 1)}
        metrics = {"accuracy": accuracy, **self.truncation(examples, rows)}
        # Entities, or words by tag.
        read = entities if self.scheme == "entities" else single_words
        by_type = compare(map(read, actual), map(read, predicted))
        if self.scheme == "entities":
            overall = total(by_type.values())
            metrics |= {"f1": overall.f1, "precision": overall.precision, "recall": overall.recall}
            same = (entities([self.usual] * len(tags)) for tags in actual)
            constant["f1"] = total(compare(map(entities, actual), same).values()).f1
        metrics |= constants(constant)
        title = "Entities by type" if self.scheme == "entities" else "Words by tag"
        header = ["", "F1", "precision", "recall", "number", "predicted"]
        lines: list[list[str | float]] = []
        for kind, of_kind in by_type.items():
            scores = [of_kind.f1, of_kind.precision, of_kind.recall]
            lines.append([kind, *scores, of_kind.actual, of_kind.predicted])
        return Results(metrics, predictions, [Table(title, header, lines)])

    def _predicted(
        self, example: WordsExample, rows: Sequence[Row], outputs: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        tags, chances = self._tags(example, rows, outputs)
        prediction: dict[str, Any] = {"id": example.id, "words": list(example.words), "prediction": tags}
        prediction["certainty"] = float(np.mean([*chances.values()])) if chances else 0.0
        if example.tags is not None:
            prediction |= {"label": list(example.tags), "correct": tags == list(example.tags)}
        return prediction

    def _tags(
        self, example: WordsExample, rows: Sequence[Row], outputs: Sequence[Mapping[str, Any]]
    ) -> tuple[list[str], dict[int, float]]:
        """Return the tag of each word, and by word its probability; a word without tokens has none."""
        tags, chances = [self.usual] * len(example.words), dict[int, float]()
        for row, output in zip(rows, outputs, strict=True):
            logits = output["logits"][list(row.keep)].astype(np.float64)
            for word, best in zip(row.keep.values(), logits.argmax(1).tolist(), strict=True):
                tags[word] = self.tags[best]
            of_row = (1 / np.exp(logits - logits.max(1, keepdims=True)).sum(1)).tolist()
            chances |= zip(row.keep.values(), of_row, strict=True)
        return tags, chances

    def average(self, outputs: Sequence[Mapping[str, Float[Tensor, "B T L"]]]) -> Mapping[str, Tensor]:
        return {"logits": mean_logits([output["logits"] for output in outputs])}

    def answers(
        self, examples: Sequence[WordsExample], rows: RowsOfExamples, outputs: OutputsOfExamples
    ) -> list[dict[str, Any]]:
        """Return the tags of each sentence with their probabilities and, of entities, the first and the last word."""
        answered = []
        for of_example in zip(examples, rows, outputs, strict=True):
            tags, chances = self._tags(*of_example)
            answer: dict[str, Any] = {"prediction": tags, "probabilities": [chances.get(n) for n in range(len(tags))]}
            if self.scheme == "entities":
                order = sorted(entities(tags), key=lambda entity: entity[1:])
                answer["entities"] = [{"type": kind, "first": first, "last": last} for kind, first, last in order]
            answered.append(answer)
        return answered


def _with_counterparts(tags: Iterable[str]) -> set[str]:
    """Return each kind of tag, such as B- and I-, for each type of entity.

    A rare type may have only one-word entities in training: CoNLL-2000 has I-LST only in its test.
    """
    entity_tags = [tag for tag in tags if tag != "O"]
    return {tag[:1] + other[1:] for tag, other in product(entity_tags, repeat=2)}
