"""A fine-tuned model in use: predictions for new text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NoReturn, overload

import torch

from electra_lab.assembly.networks import OpenedModel
from electra_lab.data.task_rows import TaskRows
from electra_lab.data.text_encoder import TextEncoder
from electra_lab.inference.pair import Pair
from electra_lab.inference.results import Predicted, Results
from electra_lab.model.task_model import Predicting, TaskModel
from electra_lab.storage.finetuning_folder import predict_command
from electra_lab.training.evaluation import Collected, using_task
from electra_lab.training.execution import Precision
from electra_lab.training.random import EVALUATION, Streams
from electra_lab.training.step import Learner
from registry import QuestionExample, Task, TextExample, WordsExample
from registry.errors import ConfigError

# The fields of an example of each type, the first one required.
FIELDS: Mapping[type, tuple[str, ...]] = {
    TextExample: ("text", "pair"),
    WordsExample: ("words",),
    QuestionExample: ("question", "context"),
}
SHOWN = {"id", "text", "pair", "words", "question"}  # fields of examples that the predictions of a task repeat


@dataclass(frozen=True)
class Job:
    """The task of a fine-tuned model, and how it was evaluated.

    task     task with the facts of its training
    takes    type of its examples
    fields   names of the fields with the text, and the second text, in its training data; None if unknown
    dataset  type and options of its training data, if known
    joins_pairs  True if the model was trained on pairs that are joined as in rows of the lab
    """

    task: Task
    takes: type
    fields: Sequence[str] | None
    precision: Precision = "fp32"
    seed: int = 0
    dataset: Mapping[str, Any] = field(default_factory=dict)
    joins_pairs: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The fields of its examples; of single texts, there is no second one."""
        names = FIELDS[self.takes]
        return names[:1] if self.takes is TextExample and self.fields and len(self.fields) == 1 else names

    @property
    def needs(self) -> tuple[str, ...]:
        """Those that every item must have: both of questions and of trained pairs."""
        both = self.takes is QuestionExample or len(self.fields or ()) > 1
        return self.names if both else self.names[:1]


class FineTuned(Pair):
    """A fine-tuned model, or several that are averaged. `electra_lab.load` makes one.

    An item is a text, a pair of texts, (question, context), or the words of a sentence; or a mapping with the fields
    `text` and `pair`, `question` and `context`, or `words`. `embed` returns the states of the first model's encoder.
    """

    def __init__(self, opened: OpenedModel, job: Job, models: Sequence[TaskModel]) -> None:
        super().__init__(opened)
        if len(models) > 1 and job.task.average is None:
            raise ConfigError(f"{self.name}: its task cannot average several models. Choose one by its seed.")
        self.encoder = TextEncoder(self.tokenizer, self.vocabulary)
        self.job, self._of_tokens = job, models[0].of_tokens
        self._learner = Learner(Predicting(models).to(self.device).eval())

    def __repr__(self) -> str:
        number = len(self._learner.objective.models)  # type: ignore[arg-type]
        return f"FineTuned({self.name!r}: {type(self.job.task).__name__}, {number} model{'s' * (number > 1)})"

    @overload
    def predict(self, texts: str | tuple[str, ...] | Mapping[str, Any], *, batch_size: int = ...) -> Predicted: ...
    @overload
    def predict(self, texts: list[Any], *, batch_size: int = ...) -> Results[Predicted]: ...
    def predict(self, texts: Any, *, batch_size: int = 32) -> Predicted | Results[Predicted]:
        """Return the predictions of the task: one for one item, and a list for a list of items.

        A text, a tuple and a mapping are one item. Raises ConfigError for items of another kind.

        batch_size  number of rows per batch; long contexts and sentences have several
        """
        self._refuse(batch_size)
        items = texts if isinstance(texts, list) else [texts]
        fields = [self._fields(item, number) for number, item in enumerate(items, start=1)]
        predictions = Results(self._predictions(fields, batch_size) if fields else [])
        return predictions if isinstance(texts, list) else predictions[0]

    def _fields(self, item: Any, number: int) -> dict[str, Any]:
        """Return an item as the fields of an example; a plain text that is to be tagged has the field `text`."""
        names, needs, words = self.job.names, self.job.needs, self.job.takes is WordsExample
        values: dict[str, Any] = {}
        if isinstance(item, Mapping):
            values = {name: item[name] for name in (*names, "text") if item.get(name) is not None}
        elif isinstance(item, str):
            values = {"text" if words else names[0]: item}
        elif isinstance(item, tuple | list):
            pairs = zip(names, item, strict=False) if len(item) <= len(names) else ()
            values = {"words": list(item)} if words else dict(pairs)
        if not self._is_complete(values):
            kinds = "a text" if names == ("text",) else f"({', '.join(names)})"
            mapping = ", ".join(map(repr, needs))
            if words:
                kinds, mapping = "a text or its words", "'words' or 'text'"
            raise ConfigError(f"item {number}: must be {kinds}, or a mapping with {mapping}; is {item!r:.60}.")
        return values

    def _is_complete(self, values: Mapping[str, Any]) -> bool:
        """Return whether fields are an example."""
        if "words" in values:
            return isinstance(values["words"], list) and all(isinstance(word, str) for word in values["words"])
        required = {"text"} if self.job.takes is WordsExample else {*self.job.needs}
        return values.keys() >= required and all(isinstance(text, str) for text in values.values())

    @torch.no_grad()
    def _predictions(self, items: Sequence[dict[str, Any]], batch_size: int) -> list[Predicted]:
        job = self.job
        # Make examples, and their rows.
        offsets: list[list[tuple[int, int]] | None] = [None] * len(items)
        if job.takes is WordsExample:
            offsets = self._split(items)
        examples = [self._example(fields, str(number)) for number, fields in enumerate(items)]
        with using_task(job.task):
            rows = job.task.rows(examples, self.encoder, self.length)
        # Read them, the longest first, as an evaluation does.
        collected = Collected(job.task, examples, rows, self._of_tokens)
        batches = TaskRows([*chain.from_iterable(rows)])
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), self._learner.evaluating(job.seed):
            for batch in batches.in_order(batch_size, self.device):
                losses = self._learner.losses(batch, Streams.of(job.seed, EVALUATION, batch.example_ids), job.precision)
                for name, output in losses.outputs.items():
                    self.finite(output[batch.attention_mask] if name in self._of_tokens else output)
                collected.update(batch, losses)
        # Decode.
        texts = [" ".join(map(_text_of, fields.values())) for fields in items]
        results, shares = [], self.unknown(texts)
        for fields, places, share, answer in zip(items, offsets, shares, collected.answers(), strict=True):
            more = {name: value for name, value in answer.items() if name not in SHOWN and name != "prediction"}
            results.append(replace(Predicted.of(fields, answer["prediction"], places, more), unknown=share))
        return results

    def _split(self, items: Sequence[dict[str, Any]]) -> list[list[tuple[int, int]] | None]:
        """Give plain texts the words that the tokenizer sees, and return their offsets; None for items with words.

        White space, which may be a token, is not a part of a word.
        """
        offsets: list[list[tuple[int, int]] | None] = [None] * len(items)
        plain = [number for number, fields in enumerate(items) if "words" not in fields]
        for number, encoded in zip(plain, self.encoder.texts([items[number]["text"] for number in plain]), strict=True):
            text, spans = items[number]["text"], dict[int, tuple[int, int]]()
            for word, (start, end) in zip(encoded.words, encoded.offsets, strict=True):
                if text[start:end].strip():
                    first, last = spans.get(word, (start, end))
                    spans[word] = min(first, start), max(last, end)
            offsets[number] = [*spans.values()]
            items[number]["words"] = [text[start:end] for start, end in spans.values()]
        return offsets

    def _example(self, fields: Mapping[str, Any], id: str) -> Any:
        if self.job.takes is WordsExample:
            return WordsExample(tuple(fields["words"]), id=id)
        pair = fields.get("pair", fields.get("context"))
        if pair is not None and not self.job.joins_pairs:
            raise ConfigError(f"{self.name}: cannot read pairs: its tokenizer or encoder joins texts in another way.")
        if self.job.takes is QuestionExample:
            return QuestionExample(fields["question"], fields["context"], labelled=False, id=id)
        return TextExample(fields["text"].strip(), None if pair is None else pair.strip(), id=id)

    def _refused(self, *_: Any) -> NoReturn:
        cure = predict_command(self.name, self.job.needs)
        raise ConfigError(f"{self.name}: is fine-tuned, so it has only the head of its task. Use it with: {cure}")

    detector = property(_refused)
    writer = property(_refused)


def _text_of(field: str | Sequence[str]) -> str:
    return field if isinstance(field, str) else " ".join(field)
