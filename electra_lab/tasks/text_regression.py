"""A number for a text or a pair of texts."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.tasks._classification import REGRESSION, constants, regression
from electra_lab.tasks._texts import CUT_METRIC, DENSE, FirstState, Head, chosen_layers, cut_share, shown, text_rows
from registry import Batch, Encoder, Results, Row, Task, Term, TextExample, tasks
from registry.contracts.tasks import OutputsOfExamples, RowsOfExamples
from registry.errors import DataError, listed


@tasks.register("text_regression", takes=TextExample, initialized_by_lab=True)
class TextRegression(Task):
    """A number for a text or a pair of texts, from the state of [CLS] through dropout and a linear layer.

    Numbers are scaled to the range of the training examples, from 0 to 1, and learned by squared error, as in
    google-research/electra. Examples that are longer than a row lose tokens at the end, of pairs the longer text first;
    their share is reported.

    head  linear; dense: a linear layer and GELU before the last one, as in transformers' classes for ELECTRA and
          DeBERTa; transformers: the layers of its class for the encoder, so that the fine-tuned model can be exported
    """

    exports_if = "head: transformers"
    metrics = {**REGRESSION, **CUT_METRIC}  # noqa: RUF012

    def __init__(self, /, *, head: Head = "linear") -> None:
        self.layers, self.chosen = DENSE, head
        self.exports_as = "ForSequenceClassification" if head != "linear" else None
        self.low, self.high = 0.0, 1.0

    def fit_labels(self, examples: Sequence[TextExample]) -> Mapping[str, Any]:
        wrong = []
        for example in examples:
            if not isinstance(example.label, int | float) or not np.isfinite(example.label):
                wrong.append(f"{example.place or example.id}: has the label {example.label!r}.")
        if wrong:
            cure = "Every training example needs a number as its label; for words there is text_classification."
            raise DataError(f"{listed(wrong)} {cure}")
        numbers = [float(example.label) for example in examples]  # type: ignore[arg-type]
        if min(numbers) == max(numbers):
            raise DataError(f"all training examples have the label {numbers[0]:g}: there is nothing to learn.")
        return {"low": min(numbers), "high": max(numbers)}

    def set_labels(self, facts: Mapping[str, Any]) -> None:
        self.low, self.high = float(facts["low"]), float(facts["high"])

    def rows(self, examples: Sequence[TextExample], encoder: Encoder, length: int) -> list[list[Row]]:
        labels: list[float | None] = []
        for example in examples:
            if isinstance(example.label, str):
                raise DataError(f"{example.place or example.id}: the label '{example.label}' is not a number.")
            labels.append(None if example.label is None else (example.label - self.low) / (self.high - self.low))
        return text_rows(examples, encoder, length, labels)

    def truncation(self, examples: Sequence[TextExample], rows: RowsOfExamples) -> Mapping[str, float]:
        return cut_share(rows)

    def head(self, dim: int, dropout: float) -> nn.Module:
        return FirstState(dim, 1, dropout, chosen_layers(self.chosen, self.layers))

    def losses(self, outputs: Mapping[str, Float[Tensor, "B 1"]], batch: Batch) -> Mapping[str, Term]:
        guess = outputs["logits"].squeeze(1)
        total = F.mse_loss(guess, batch.labels["label"].to(guess.dtype), reduction="sum")
        return {"number": Term(total, torch.full((), len(batch), device=total.device), 1.0)}

    @torch.no_grad()
    def exported(self, head: nn.Module) -> nn.Module:
        """Return the layers with the scale of the numbers in the last one."""
        scaled, size = deepcopy(head), self.high - self.low
        last = scaled.get_submodule("out")
        last.weight.mul_(size)  # type: ignore[operator]
        last.bias.mul_(size).add_(self.low)  # type: ignore[operator]
        return scaled

    def average(self, outputs: Sequence[Mapping[str, Float[Tensor, "B 1"]]]) -> Mapping[str, Tensor]:
        return {"logits": torch.stack([output["logits"] for output in outputs]).mean(0)}

    def results(self, examples: Sequence[TextExample], rows: RowsOfExamples, outputs: OutputsOfExamples) -> Results:
        numbers = np.array([float(output["logits"][0]) for (output,) in outputs]) * (self.high - self.low) + self.low
        predictions = []
        for example, number in zip(examples, numbers, strict=True):
            label = {} if example.label is None else {"label": example.label}
            predictions.append({**shown(example), "prediction": float(number), **label})
        if any(example.label is None for example in examples):
            return Results({}, predictions)
        truth = np.array([float(example.label) for example in examples])  # type: ignore[arg-type]
        metrics = {**regression(truth, numbers), **constants(regression(truth, np.ones_like(truth)))}
        return Results({**metrics, **cut_share(rows)}, predictions)
