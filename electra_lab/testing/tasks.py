"""Laws of tasks that train a model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from electra_lab.data.task_rows import TaskRows
from electra_lab.data.text_encoder import TextEncoder
from electra_lab.data.vocabulary import make_vocabulary
from electra_lab.testing.common import Contract
from registry import (
    Answer,
    Batch,
    Metric,
    QuestionExample,
    Results,
    Row,
    Task,
    Term,
    TextExample,
    WordsExample,
    tasks,
    tokenizers,
)
from registry.errors import DataError

DIM = 12
LENGTHS = (8, 16, 64)
TEXT = "the old cat sat on the mat and saw seven small dogs, who ran to a river in the north"
WORDS = TEXT.replace(",", " ,").split()
CONTEXTS = (TEXT, "Åse's cat (the red one) sat.", f"It was said: {TEXT}.")


def text_examples(labels: Sequence[Any]) -> list[TextExample]:
    """Return a text for each label, short and long ones, every other one a pair."""
    texts = ["the cat", TEXT, "seven dogs ran", "a mat, a river", "Åse"]
    examples = []
    for number, label in enumerate(labels):
        pair = texts[-number % 5] if number % 2 else None
        examples.append(TextExample(texts[number % 5], pair, label, f"t{number}", f"texts.tsv:{number + 2}"))
    return examples


def words_examples() -> list[WordsExample]:
    """Return sentences with entities: short, long, and with characters that a tokenizer may drop."""
    kinds = ("O", "B-X", "I-X", "B-Y", "I-Y", "O")
    sentences = [("the", "cat"), tuple(WORDS), ("\u200d", "ran", "\ufffd"), (WORDS[5] * 12, "sat")]
    examples = []
    for number, words in enumerate(sentences):
        tags = tuple(kinds[(number + place) % 6] for place in range(len(words)))
        examples.append(WordsExample(words, tags, f"w{number}", f"words.txt:{30 * number + 1}"))
    return examples


def question_examples() -> list[QuestionExample]:
    """Return questions about short and long contexts, with several answers, one, or none."""
    numbers = (0, 1, 2, 0, 2, 1)
    texts: list[list[str]] = [["seven", "seven small dogs"], ["the red one"], [], ["north"], ["a river"], []]
    examples = []
    for n, (number, answers) in enumerate(zip(numbers, texts, strict=True)):
        context = CONTEXTS[number]
        answers_in_context = tuple(Answer(text, context.index(text)) for text in answers)
        question = f"who saw {TEXT if n == 3 else 'what'}?"
        examples.append(QuestionExample(question, context, answers_in_context, id=f"q{n}", place=f"squad.json:{n + 1}"))
    return examples


@cache
def encoder() -> TextEncoder:
    """Return an encoder for which some words are one token and others several."""
    text = "the old cat sat on the mat and dogs ran to a town , in"
    trained = tokenizers.get("wordpiece").component([text, text, *sorted(set("".join(CONTEXTS)))], vocab_size=200)
    counts = torch.zeros(trained.get_vocab_size(), dtype=torch.long)
    return TextEncoder(trained, make_vocabulary(trained, counts, torch.device("cpu")))


class TaskContract(Contract):
    """Laws of tasks that train a model, with states that depend on token and position alone.

    Override `examples` if the task takes its own kind of examples, or `labels` of texts.
    """

    registry = tasks
    labels: Sequence[Any] = ("bad", "good", "good", "bad", "odd", "good", "bad")

    def examples(self) -> list[Any]:
        """Return examples with labels, some of which are longer than a row."""
        takes = self.declared("takes")
        if takes is TextExample:
            return list(text_examples(self.labels))
        return list(words_examples() if takes is WordsExample else question_examples())

    def without_labels(self, example: Any) -> Any:
        if isinstance(example, TextExample):
            return replace(example, label=None)
        if isinstance(example, WordsExample):
            return replace(example, tags=None)
        return replace(example, answers=(), labelled=False)

    def unlabelled(self) -> list[Any]:
        return [self.without_labels(example) for example in self.examples()]

    def fitted(self, examples: Sequence[Any]) -> Any:
        """Return the facts that a task learns from examples."""
        return self.component()().fit_labels(examples)

    def told(self, facts: Any) -> Task:
        """Return a task that has these facts."""
        task: Task = self.component()()
        task.set_labels(facts)
        return task

    def task(self) -> Task:
        """Return a task that has learned its examples, in an earlier process."""
        return self.told(json.loads(json.dumps(self.fitted(self.examples()))))

    def head(self, task: Task, device: str = "cpu") -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return task.head(DIM, 0.1).to(device).eval()

    def rows(self, examples: Sequence[Any], length: int = 16) -> Sequence[Sequence[Row]]:
        return self.task().rows(examples, encoder(), length)

    def batch(self, rows: Sequence[Row], device: str = "cpu") -> Batch:
        return next(iter(TaskRows(rows).in_order(len(rows), torch.device(device))))

    def outputs(self, head: nn.Module, batch: Batch, hidden: Tensor | None = None) -> dict[str, Tensor]:
        returned = head(states(batch) if hidden is None else hidden, batch)
        named = {"logits": returned} if isinstance(returned, Tensor) else returned
        return {name: output.float() for name, output in named.items()}

    @torch.no_grad()
    def kept(self, head: nn.Module, rows: Sequence[Row], device: str = "cpu") -> list[dict[str, Any]]:
        """Return the outputs of each row of a batch, as a task is given them for `results`."""
        batch = self.batch(rows, device)
        outputs = {name: output.cpu().numpy() for name, output in self.task().kept(self.outputs(head, batch)).items()}
        by_row: list[dict[str, Any]] = [{} for _ in rows]
        for place, row in enumerate(batch.example_ids.tolist()):  # the longest row comes first
            by_row[row] = {name: output[place] for name, output in outputs.items()}
        return by_row

    def each_output(self, head: nn.Module, rows: Sequence[Sequence[Row]], device: str = "cpu") -> list[list[Any]]:
        """Return the same by example, each row in a batch by itself."""
        outputs: list[list[Any]] = []
        for rows_of_example in rows:
            outputs.append([self.kept(head, [row], device)[0] for row in rows_of_example])
        return outputs

    def results(self, examples: Sequence[Any]) -> Results:
        task, rows = self.task(), self.rows(examples)
        return task.results(examples, rows, self.each_output(self.head(task), rows))

    def test_metrics_are_declared_with_a_summary(self) -> None:
        metrics = self.component()().metrics
        assert metrics
        assert all(isinstance(metric, Metric) and metric.summary for metric in metrics.values())

    def test_what_it_learned_survives_json(self) -> None:
        examples = self.examples()
        facts = self.fitted(examples)
        assert json.loads(json.dumps(facts, allow_nan=False)) == facts
        assert plain(self.told(facts).rows(examples, encoder(), 16)) == plain(self.rows(examples))

    def test_what_it_learned_does_not_depend_on_the_order(self) -> None:
        assert self.fitted(self.examples()) == self.fitted(self.examples()[::-1])

    def test_examples_without_labels_cannot_be_learned(self) -> None:
        """The error says where the example is."""
        examples = self.examples()
        examples[1] = self.without_labels(examples[1])
        with pytest.raises(DataError, match=examples[1].place):
            self.fitted(examples)

    @pytest.mark.parametrize("length", LENGTHS)
    def test_every_example_has_rows_that_fit(self, length: int) -> None:
        cls, sep = encoder().vocabulary.cls_id, encoder().vocabulary.sep_id
        rows = self.rows(self.examples(), length)
        assert len(rows) == len(self.examples())
        assert all(rows), "an example has no row"
        for row in flat(rows):
            assert len(row.tokens) <= length, f"a row has {len(row.tokens)} tokens"
            assert (row.tokens[0], row.tokens[-1]) == (cls, sep), "a row is not between [CLS] and [SEP]"
            assert len(row.segments) == len(row.tokens)
            assert list(row.segments) == sorted(row.segments)
            assert set(row.segments) <= {0, 1}

    @pytest.mark.parametrize("length", LENGTHS)
    def test_labels_are_numbers_or_one_for_each_token(self, length: int) -> None:
        rows = flat(self.rows(self.examples(), length))
        assert rows[0].labels
        for row in rows:
            assert row.labels.keys() == rows[0].labels.keys()
            for name, label in row.labels.items():
                assert isinstance(label, Sequence) == isinstance(rows[0].labels[name], Sequence)
                assert not isinstance(label, Sequence) or len(label) == len(row.tokens), f"{name} is not per token"
                assert np.isfinite(label).all(), f"{name} is not finite"

    def test_rows_depend_on_their_example_alone(self) -> None:
        examples = self.examples()
        together = plain(self.rows(examples))
        assert together == plain(self.rows(examples[::-1]))[::-1]
        for example, rows in zip(examples, together, strict=True):
            assert plain(self.rows([example])) == [rows]

    def test_losses_reach_every_parameter(self, device: str) -> None:
        """A bias may have no influence: softmax takes it out of logits over positions."""
        task = self.task()
        batch = self.batch(flat(self.rows(self.examples())), device)
        head = self.head(task, device).train()
        hidden = states(batch).requires_grad_()
        terms = task.losses(self.outputs(head, batch, hidden), batch)
        assert terms
        loss = total(terms)
        assert loss.isfinite()
        loss.backward()  # type: ignore[no-untyped-call]
        for name, parameter in head.named_parameters():
            assert parameter.grad is not None, f"{name} has no gradient"
            assert parameter.grad.isfinite().all(), f"the gradient of {name} is not finite"
            assert parameter.ndim < 2 or parameter.grad.any(), f"the gradient of {name} is zero"
        assert hidden.grad is not None
        assert hidden.grad.isfinite().all()
        assert not hidden.grad[~batch.attention_mask].any(), "padding gets a gradient"

    @torch.no_grad()
    def test_losses_are_sums_over_rows(self) -> None:
        """So that micro-batches change nothing, and neither does the padding that longer rows bring."""
        task, rows = self.task(), flat(self.rows(self.examples()))
        head = self.head(task)
        batches = map(self.batch, [rows, *zip(rows, strict=True)])
        together, *parts = (task.losses(self.outputs(head, batch), batch) for batch in batches)
        for name, term in together.items():
            terms = [part[name] for part in parts]
            assert int(term.count) == sum(int(part.count) for part in terms)
            assert float(term.sum) == pytest.approx(sum(float(part.sum) for part in terms), rel=1e-4, abs=1e-4)
            assert all(part.weight == term.weight for part in terms)

    @torch.no_grad()
    def test_counts_of_losses_do_not_depend_on_states(self) -> None:
        task = self.task()
        batch = self.batch(flat(self.rows(self.examples())))
        head = self.head(task)
        seen = task.losses(self.outputs(head, batch), batch)
        unseen = task.losses(self.outputs(head, batch, torch.zeros_like(states(batch))), batch)
        assert seen.keys() == unseen.keys()
        assert all(int(term.count) == int(unseen[name].count) for name, term in seen.items())

    def test_results_are_finite_and_json(self) -> None:
        examples = self.examples()
        results = self.results(examples)
        declared = self.component()().metrics
        assert results.metrics.keys() <= declared.keys()
        assert next(iter(declared)) in results.metrics, "the most important metric is missing"
        assert all(type(value) is float and math.isfinite(value) for value in results.metrics.values()), results.metrics
        assert [prediction["id"] for prediction in results.predictions] == [example.id for example in examples]
        for prediction in results.predictions:
            assert {"prediction", "label"} <= prediction.keys()
            assert type(prediction.get("correct", True)) is bool
            assert math.isfinite(prediction.get("certainty", 0))
            again = json.loads(json.dumps(prediction, allow_nan=False))
            assert again == prediction, "a prediction is not made of JSON values"
        for table in results.tables:
            assert table.title
            assert all(len(row) == len(table.header) for row in table.rows)
            assert {type(cell) for cell in chain.from_iterable(table.rows)} <= {str, int, float}, table.rows

    @pytest.mark.parametrize("length", LENGTHS)
    def test_what_rows_lack_is_told_with_and_without_labels(self, length: int) -> None:
        """As metrics, which are those of the results; without labels, those that need none."""
        task, examples, unlabelled = self.task(), self.examples(), self.unlabelled()
        rows = self.rows(examples, length)
        with_labels, without_labels = (
            task.truncation(examples, rows),
            task.truncation(unlabelled, self.rows(unlabelled, length)),
        )
        assert all(0 <= value <= 1 for value in with_labels.values()), with_labels
        results = task.results(examples, rows, self.each_output(self.head(task), rows))
        assert with_labels.items() <= results.metrics.items()
        assert without_labels.items() <= with_labels.items()

    def test_examples_without_labels_have_rows_and_predictions(self) -> None:
        examples = self.unlabelled()
        rows = flat(self.rows(examples))
        assert [row.tokens for row in rows] == [row.tokens for row in flat(self.rows(self.examples()))]
        assert not any(row.labels for row in rows)
        results = self.results(examples)
        assert not results.metrics
        assert [prediction["id"] for prediction in results.predictions] == [example.id for example in examples]
        assert not any("label" in prediction or "correct" in prediction for prediction in results.predictions)

    def test_results_do_not_depend_on_labels_or_on_what_else_is_in_the_batch(self, device: str) -> None:
        """Outputs in eval mode are a function of the row's tokens."""
        task, examples = self.task(), self.examples()
        head = self.head(task, device)
        rows = self.rows(examples)
        alone = self.each_output(head, self.rows(self.unlabelled()), device)
        padded = iter(self.kept(head, flat(rows), device))
        together = []
        for outputs in alone:
            together.append([cut(next(padded), output) for output in outputs])
        first, second = task.results(examples, rows, alone), task.results(examples, rows, together)
        assert first.metrics == pytest.approx(second.metrics, abs=1e-4)
        for of_first, of_second in zip(first.predictions, second.predictions, strict=True):
            expected = of_second["prediction"]
            close = pytest.approx(expected, abs=1e-4) if isinstance(expected, float) else expected
            assert of_first["prediction"] == close

    def test_the_order_of_examples_does_not_matter(self) -> None:
        first, second = self.results(self.examples()), self.results(self.examples()[::-1])
        assert first.metrics == pytest.approx(second.metrics)
        assert list(first.predictions) == list(second.predictions)[::-1]


def flat(rows: Sequence[Sequence[Row]]) -> list[Row]:
    return list(chain.from_iterable(rows))


def states(batch: Batch) -> Tensor:
    """Return Float[B T D] that depends on token and position alone, at real positions."""
    tables = [torch.randn(size, DIM, generator=torch.Generator().manual_seed(size)) for size in (500, 128)]
    of_tokens, of_places = (table.to(batch.tokens.device) for table in tables)
    summed = of_tokens[batch.tokens] + of_places[: batch.tokens.shape[1]]
    return summed.masked_fill(~batch.attention_mask.unsqueeze(-1), 7.0)


def total(terms: Mapping[str, Term]) -> Tensor:
    return sum((term.weight * term.sum / term.count.clamp(min=1) for term in terms.values()), torch.tensor(0.0))


def plain(rows: Sequence[Sequence[Row]]) -> list[list[Any]]:
    """Return rows as plain values by example, to compare."""
    values: list[list[Any]] = []
    for rows_of_example in rows:
        values.append([(list(row.tokens), list(row.segments), dict(row.labels)) for row in rows_of_example])
    return values


def cut(outputs: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Return outputs in the shapes of those of an unpadded row."""
    return {name: outputs[name][tuple(map(slice, output.shape))] for name, output in like.items()}
