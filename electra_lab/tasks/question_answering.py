"""Answers that are a part of a context: SQuAD 1.1 and 2.0."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.tasks._averages import mean_binary_logits, mean_logits
from electra_lab.tasks._classification import UNSEEN_METRIC, Share, constants, over_constant, unseen_share
from electra_lab.tasks._spans import (
    NEVER,
    Independent,
    Joint,
    Outputs,
    Read,
    Span,
    independent_span,
    joint_span,
    mean_spans,
)
from electra_lab.tasks._squad import Segmentation, best_threshold, scores
from electra_lab.tasks._windows import windows
from registry import Batch, Encoded, Encoder, Metric, QuestionExample, Results, Row, Table, Task, Term, tasks
from registry.contracts.tasks import OutputsOfExamples, RowsOfExamples
from registry.errors import DataError, listed

_OF_QUESTIONS = {
    "f1": Share("mean F1 of the words (or characters: see segmentation) in prediction and answer", "F1"),
    "exact_match": Share("share of the predictions that are right but for case, punctuation and articles", "EM"),
}


@tasks.register("question_answering", takes=QuestionExample, initialized_by_lab=True)
class QuestionAnswering(Task):
    """The answer to a question, as a part of a context, or no answer: SQuAD 1.1 and 2.0.

    As in google-research/electra: a row is [CLS] question [SEP] context [SEP]. Longer contexts are read in windows. A
    window without the complete answer is trained to find it at [CLS], as are all windows of a question without an
    answer. Of several right answers the first is trained. The prediction is the best span in any window, copied from
    the context; spans count in the window where their first token has the most context.

    If some training questions have no answer (SQuAD 2.0), a number for no answer is also learned. A question gets no
    answer if the lowest such number of its windows is above `threshold`. If all training questions have an answer,
    questions without one count as errors.

    head              joint: the end depends on the start; independent: it does not; transformers: nor here, with the
                      layers of transformers' class for the encoder, so that the fine-tuned model can be exported. It
                      has no classifier: no_answer is cls
    beam              number of starts, the most likely ones, that the joint head tries in each window
    no_answer         classifier: the number is the logit of a classifier; cls: as in BERT, the sum of the logits at
                      [CLS] minus that of the best span in any window, not for the joint head
    no_answer_weight  weight of the classifier's loss
    threshold         the official one is -2.75, for the classifier
    stride            tokens from one window to the next; at most half of a window
    max_query         tokens of a question to read, the first ones, and at most half a row; truncation is counted
    max_answer        longest predicted answer in tokens
    segmentation      units of answers, for F1 and exact match: words between spaces as in SQuAD; characters, for
                      languages that are written without spaces, as in KorQuAD 1.0; or mixed, Chinese characters and
                      other words, as in MLQA. The latter two ignore all punctuation and no articles
    """

    metrics = {  # noqa: RUF012
        **over_constant(_OF_QUESTIONS, "no answer"),
        "answerable_f1": Share("F1 of the questions that have an answer", "F1, answerable"),
        "answerable_exact_match": Share("exact match of the questions that have an answer", "EM, answerable"),
        "unanswerable_accuracy": Share("share of the questions without an answer that get none", "unanswerable"),
        "best_f1": Share("F1 at the threshold that is best for these very questions", "F1, best threshold"),
        "best_exact_match": Share("the same for exact match", "EM, best threshold"),
        "cut_questions": Metric("share of the questions that lost tokens", "cut questions", higher_is_better=False),
        "missed_answers": Metric(
            "share of the answers that are too long, in no window as a whole, or without tokens",
            "missed answers",
            higher_is_better=False,
        ),
        **UNSEEN_METRIC,
    }

    def __init__(
        self,
        /,
        *,
        head: Literal["joint", "independent", "transformers"] = "joint",
        beam: Annotated[int, Field(gt=0, le=10**9)] = 20,
        no_answer: Literal["classifier", "cls"] = "classifier",
        no_answer_weight: Annotated[float, Field(gt=0)] = 0.5,
        threshold: float = 0.0,
        stride: Annotated[int, Field(gt=0, le=10**9)] = 128,
        max_query: Annotated[int, Field(gt=0, le=10**9)] = 64,
        max_answer: Annotated[int, Field(gt=0, le=10**9)] = 30,
        segmentation: Segmentation = "words",
    ) -> None:
        if (head, no_answer) == ("joint", "cls"):
            raise ValueError("no_answer: cls needs head: independent or transformers.")
        self.joint, self.of_class, self.beam = head == "joint", head == "transformers", beam
        self.classifier, self.weight = no_answer != "cls" and not self.of_class, no_answer_weight
        self.threshold, self.stride, self.max_query, self.max_answer = threshold, stride, max_query, max_answer
        self.segmentation: Segmentation = segmentation
        self.set_labels({"unanswerable": False})

    def fit_labels(self, examples: Sequence[QuestionExample]) -> Mapping[str, Any]:
        unknown = [example for example in examples if not example.labelled]
        if unknown:
            reasons = [f"{example.place or example.id}: the answer is not known." for example in unknown]
            raise DataError(f"{listed(reasons)} Every training question needs one or none.")
        return {"unanswerable": not all(example.answers for example in examples)}

    def set_labels(self, facts: Mapping[str, Any]) -> None:
        self.unanswerable = bool(facts["unanswerable"])
        # In transformers, start and end are independent, and there is no classifier.
        exports = not self.joint and not (self.unanswerable and self.classifier)
        self.exports_as = "ForQuestionAnswering" if exports else None

    exports_if = "head: transformers"
    layers = ("span",)

    def rows(self, examples: Sequence[QuestionExample], encoder: Encoder, length: int) -> Sequence[Sequence[Row]]:
        texts = list(dict.fromkeys(example.context for example in examples))
        contexts = dict(zip(texts, encoder.texts(texts), strict=True))
        questions = encoder.texts([example.question for example in examples])
        rows = []
        for example, question in zip(examples, questions, strict=True):
            rows.append(list(self._rows(example, question, contexts[example.context], encoder, length)))
        return rows

    def _rows(
        self, example: QuestionExample, question: Encoded, context: Encoded, encoder: Encoder, length: int
    ) -> Iterator[Row]:
        cls, sep = encoder.vocabulary.cls_id, encoder.vocabulary.sep_id
        asked = question.ids[: min(self.max_query, length // 2)]
        before = [cls, *asked, sep]
        answer = self._answer(example, context)
        for window in windows(len(context.ids), length - len(before) - 1, self.stride):
            tokens = [*before, *context.ids[window.first : window.end], sep]
            segments = [0] * len(before) + [1] * (len(tokens) - len(before))
            labels: dict[str, float] = {}
            if example.labelled:
                # The answer's place in the row, or [CLS] if it is not in the window as a whole.
                first, last = 0, 0
                if answer and window.first <= answer[0] and answer[1] < window.end:
                    first, last = (place - window.first + len(before) for place in answer)
                labels = {"start": first, "end": last}
                if self.unanswerable and self.classifier:
                    labels["no_answer"] = float(not example.answers)
            yield Row(tokens, segments, labels, Read(context, window, len(before), len(asked) < len(question.ids)))

    def _answer(self, example: QuestionExample, context: Encoded) -> tuple[int, int] | None:
        """Return the first and the last token of the first answer; None if there is no answer, or it has no tokens."""
        for answer in example.answers:
            if not answer.text or not example.context.startswith(answer.text, answer.start) or answer.start < 0:
                reason = f"the answer '{answer.text}' is not in its context at character {answer.start}"
                raise DataError(f"{example.place or example.id}: {reason}. Correct the answer or its place.")
        if not example.answers:
            return None
        start, end = example.answers[0].start, example.answers[0].start + len(example.answers[0].text)
        tokens = [n for n, (first, last) in enumerate(context.offsets) if first < end and last > start]
        return (tokens[0], tokens[-1]) if tokens else None

    def head(self, dim: int, dropout: float) -> nn.Module:
        classifier = self.unanswerable and self.classifier
        if self.joint:
            return Joint(dim, dropout, classifier=classifier, beam=self.beam, longest=self.max_answer)
        return Independent(dim, dropout, self.layers if self.of_class else (), classifier=classifier)

    def losses(self, outputs: Mapping[str, Float[Tensor, "B ..."]], batch: Batch) -> Mapping[str, Term]:
        terms = {}
        count = torch.full((), len(batch), device=batch.tokens.device)
        for name in ("start", "end"):
            terms[name] = Term(F.cross_entropy(outputs[name], batch.labels[name], reduction="sum"), count, 0.5)
        if "no_answer" in outputs:
            logits, labels = outputs["no_answer"], batch.labels["no_answer"].float()
            loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
            terms["no_answer"] = Term(loss, count, self.weight)
        return terms

    def truncation(self, examples: Sequence[QuestionExample], rows: RowsOfExamples) -> Mapping[str, float]:
        shares = {"cut_questions": float(np.mean([of_example[0].keep.cut for of_example in rows]))}
        pairs = zip(examples, rows, strict=True)
        missed = [self._misses(of_example) for example, of_example in pairs if example.answers]
        if missed:
            shares["missed_answers"] = float(np.mean(missed))
        unseen = [not example.answers and not self.unanswerable for example in examples if example.labelled]
        return shares | unseen_share(unseen)

    def results(self, examples: Sequence[QuestionExample], rows: RowsOfExamples, outputs: OutputsOfExamples) -> Results:
        predictions = [self._predicted(*of_example) for of_example in zip(examples, rows, outputs, strict=True)]
        if not all(example.labelled for example in examples):
            return Results({}, predictions)
        # Exact match and F1 of each span, and of each prediction, [N 2].
        texts = [_texts(example) for example in examples]
        answerable = np.array(list(map(bool, texts)))
        spans = [prediction["span"] for prediction in predictions]
        of_spans = np.array([scores(span, right, self.segmentation) for span, right in zip(spans, texts, strict=True)])
        silent = np.array(list(map(self._is_silent, predictions)))
        final = np.where(silent[:, None], ~answerable[:, None], of_spans)
        for prediction, right, (exact, f1) in zip(predictions, texts, final.tolist(), strict=True):
            prediction |= {"label": right, "correct": bool(exact), "f1": f1}
        metrics = {"f1": float(final[:, 1].mean()), "exact_match": float(final[:, 0].mean())}
        metrics |= constants(dict.fromkeys(_OF_QUESTIONS, float((~answerable).mean())))
        metrics |= self.truncation(examples, rows)
        if not self.unanswerable:
            return Results(metrics, predictions)
        # Questions with and without an answer, and the best threshold between them.
        if answerable.any():
            metrics["answerable_f1"] = float(final[answerable, 1].mean())
            metrics["answerable_exact_match"] = float(final[answerable, 0].mean())
        if not answerable.all():
            metrics["unanswerable_accuracy"] = float(final[~answerable, 0].mean())
        null = [prediction["no_answer"] for prediction in predictions]
        lines: list[list[str | float]] = []
        for column, name in ((1, "f1"), (0, "exact_match")):
            best, threshold = best_threshold(null, of_spans[:, column], ~answerable)
            metrics[f"best_{name}"] = best
            best_at = "below all" if threshold is None else threshold
            lines.append([self.metrics[name].title, self.threshold, metrics[name], best_at, best])
        header = ["", "threshold", "score", "best threshold", "best score"]
        return Results(metrics, predictions, [Table("Thresholds of no answer", header, lines)])

    def _predicted(self, example: QuestionExample, rows: Sequence[Row], outputs: Sequence[Outputs]) -> dict[str, Any]:
        best = self._best(rows, outputs)
        start, end = _place_in_context(best, rows)
        text = example.context[start:end]
        prediction: dict[str, Any] = {"id": example.id, "question": example.question, "span": text, "prediction": text}
        prediction["certainty"] = best.probability if best else 0.0
        if self.unanswerable:
            if self.classifier:
                null = min(float(output["no_answer"]) for output in outputs)
            else:
                null = min(float(output["start"][0]) + float(output["end"][0]) for output in outputs)
                null -= best.score if best else 2 * NEVER
            prediction["no_answer"] = null
            if self._is_silent(prediction):
                prediction |= {"prediction": "", "certainty": 0.5 + 0.5 * math.tanh(null / 2)}
        return prediction

    def _best(self, rows: Sequence[Row], outputs: Sequence[Outputs]) -> Span | None:
        """Return the best span in any window."""
        spans = [self._span(row.keep, output) for row, output in zip(rows, outputs, strict=True)]
        return max((span for span in spans if span), key=lambda span: span.score, default=None)

    def average(self, outputs: Sequence[Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        averaged = {"start": mean_logits([output["start"] for output in outputs])}
        if self.joint:
            averaged |= mean_spans(outputs)
        else:
            averaged["end"] = mean_logits([output["end"] for output in outputs])
        if "no_answer" in outputs[0]:
            averaged["no_answer"] = mean_binary_logits([output["no_answer"] for output in outputs])
        return averaged

    def answers(
        self, examples: Sequence[QuestionExample], rows: RowsOfExamples, outputs: OutputsOfExamples
    ) -> list[dict[str, Any]]:
        """Return each answer with its probability and its characters in the context; "" is no answer."""
        answered = []
        for example, of_example, of_rows in zip(examples, rows, outputs, strict=True):
            predicted = self._predicted(example, of_example, of_rows)
            answer = {"prediction": predicted["prediction"], "probability": predicted["certainty"]}
            start, end = _place_in_context(self._best(of_example, of_rows), of_example)
            answer |= {"start": start, "end": end} if answer["prediction"] else {"start": None, "end": None}
            answered.append(answer)
        return answered

    def _span(self, read: Read, output: Outputs) -> Span | None:
        """Return the best span of a window."""
        return joint_span(read, output) if self.joint else independent_span(read, output, self.max_answer)

    def _is_silent(self, prediction: Mapping[str, Any]) -> bool:
        return self.unanswerable and prediction["no_answer"] > self.threshold

    def _misses(self, rows: Sequence[Row]) -> bool:
        """Return whether no window allows the prediction of the answer that is trained."""
        spans: list[Any] = [(row.labels["start"], row.labels["end"]) for row in rows]
        return not any(start and end - start < self.max_answer for start, end in spans)


def _place_in_context(span: Span | None, rows: Sequence[Row]) -> tuple[int, int]:
    """Return the characters of a span in the context; 0, 0 without one."""
    offsets = rows[0].keep.context.offsets
    return (offsets[span.first][0], offsets[span.last][1]) if span else (0, 0)


def _texts(example: QuestionExample) -> list[str]:
    """Return the different answers."""
    return list(dict.fromkeys(answer.text for answer in example.answers))
