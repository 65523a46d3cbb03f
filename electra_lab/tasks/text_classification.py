"""A label for a text or a pair of texts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.tasks._averages import mean_logits
from electra_lab.tasks._classification import (
    CLASSIFICATION,
    IGNORED,
    UNSEEN_METRIC,
    best_constant,
    classification,
    confusion,
    constants,
    in_order,
    unseen_share,
)
from electra_lab.tasks._texts import CUT_METRIC, DENSE, FirstState, Head, chosen_layers, cut_share, shown, text_rows
from registry import Batch, Encoder, Results, Row, Task, Term, TextExample, tasks
from registry.contracts.tasks import OutputsOfExamples, RowsOfExamples
from registry.errors import DataError, listed


@tasks.register("text_classification", takes=TextExample, initialized_by_lab=True)
class TextClassification(Task):
    """A label for a text or a pair of texts, from the state of [CLS] through dropout and a linear layer.

    The labels are those of the training examples; examples with others count as errors. Examples that are longer than a
    row lose tokens at the end, of pairs the longer text first. The shares of both are reported.

    head  linear; dense: a linear layer and GELU before the last one, as in transformers' classes for ELECTRA and
          DeBERTa; transformers: the layers of its class for the encoder, so that the fine-tuned model can be exported
    """

    exports_if = "head: transformers"
    metrics = {**CLASSIFICATION, **CUT_METRIC, **UNSEEN_METRIC}  # noqa: RUF012

    def __init__(self, /, *, head: Head = "linear") -> None:
        self.layers, self.chosen = DENSE, head
        self.exports_as = "ForSequenceClassification" if head != "linear" else None
        self.labels: list[str] = []

    def fit_labels(self, examples: Sequence[TextExample]) -> Mapping[str, Any]:
        wrong = []
        for example in examples:
            if not isinstance(example.label, str):
                reason = "has no label" if example.label is None else f"has the number {example.label} as its label"
                wrong.append(f"{example.place or example.id}: {reason}.")
        if wrong:
            cure = "Every training example needs a word as its label; for numbers there is text_regression."
            raise DataError(f"{listed(wrong)} {cure}")
        counts = Counter(str(example.label) for example in examples)
        labels = in_order(counts)
        if len(labels) < 2:
            raise DataError(f"all training examples have the label '{labels[0]}': there is nothing to learn.")
        return {"labels": labels, "usual": max(labels, key=counts.__getitem__)}

    def set_labels(self, facts: Mapping[str, Any]) -> None:
        self.labels, self.usual = list(facts["labels"]), str(facts["usual"])

    def rows(self, examples: Sequence[TextExample], encoder: Encoder, length: int) -> list[list[Row]]:
        numbers = {label: number for number, label in enumerate(self.labels)}
        labels = [None if example.label is None else numbers.get(str(example.label), IGNORED) for example in examples]
        return text_rows(examples, encoder, length, labels)

    def truncation(self, examples: Sequence[TextExample], rows: RowsOfExamples) -> Mapping[str, float]:
        return cut_share(rows) | unseen_share([row.labels.get("label") == IGNORED for (row,) in rows])

    def head(self, dim: int, dropout: float) -> nn.Module:
        return FirstState(dim, len(self.labels), dropout, chosen_layers(self.chosen, self.layers))

    def losses(self, outputs: Mapping[str, Float[Tensor, "B L"]], batch: Batch) -> Mapping[str, Term]:
        labels = batch.labels["label"]
        total = F.cross_entropy(outputs["logits"], labels, ignore_index=IGNORED, reduction="sum")
        return {"label": Term(total, (labels != IGNORED).sum(), 1.0)}

    def kept(self, outputs: Mapping[str, Float[Tensor, "B L"]]) -> Mapping[str, Tensor]:
        chances = _chances(outputs["logits"].cpu().numpy())
        return {"best": torch.from_numpy(chances.argmax(axis=1)), "certainty": torch.from_numpy(chances.max(axis=1))}

    def average(self, outputs: Sequence[Mapping[str, Float[Tensor, "B L"]]]) -> Mapping[str, Tensor]:
        return {"logits": mean_logits([output["logits"] for output in outputs])}

    def answers(
        self, examples: Sequence[TextExample], rows: RowsOfExamples, outputs: OutputsOfExamples
    ) -> list[dict[str, Any]]:
        """Return the best label of each example, and the probability of every label."""
        answered = []
        for chances in _chances(np.array([output["logits"] for (output,) in outputs])):
            label, probabilities = self.labels[chances.argmax()], dict(zip(self.labels, chances.tolist(), strict=True))
            answered.append({"prediction": label, "probability": probabilities[label], "probabilities": probabilities})
        return answered

    def results(self, examples: Sequence[TextExample], rows: RowsOfExamples, outputs: OutputsOfExamples) -> Results:
        best = np.array([output["best"] for (output,) in outputs])
        certainty = np.array([output["certainty"] for (output,) in outputs])
        predictions = []
        for example, number, chance in zip(examples, best, certainty, strict=True):
            prediction = {**shown(example), "prediction": self.labels[number], "certainty": float(chance)}
            if example.label is not None:
                prediction |= {"label": example.label, "correct": example.label == self.labels[number]}
            predictions.append(prediction)
        if any(example.label is None for example in examples):
            return Results({}, predictions)
        numbers = {label: number for number, label in enumerate(self.labels)}
        truth = np.array([numbers.setdefault(str(example.label), len(numbers)) for example in examples])
        metrics = {**classification(truth, best, len(self.labels)), **self.truncation(examples, rows)}
        metrics |= constants(best_constant(truth, len(self.labels)))
        return Results(metrics, predictions, [confusion(truth, best, list(numbers))])


def _chances(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return the probabilities of the labels, Float64[N L]."""
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    chances: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return chances
