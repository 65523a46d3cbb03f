"""Laws of tasks that train a model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from electra_lab.data.vocabulary import make_vocabulary
from electra_lab.jobs.finetuning.encoder import TextEncoder
from electra_lab.jobs.finetuning.rows import TaskRows
from electra_lab.testing.common import Contract, on_each_device
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
    return [
        TextExample(texts[n % 5], texts[-n % 5] if n % 2 else None, label, f"t{n}", f"texts.tsv:{n + 2}")
        for n, label in enumerate(labels)
    ]


def words_examples() -> list[WordsExample]:
    """Return sentences of entities, among them long ones, and a word of characters that a tokenizer may drop."""
    sentences = [("the", "cat"), tuple(WORDS), ("\u200d", "ran", "\ufffd"), (WORDS[5] * 12, "sat")]
    kinds = ("O", "B-X", "I-X", "B-Y", "I-Y", "O")
    return [
        WordsExample(words, tuple(kinds[(n + i) % 6] for i in range(len(words))), f"w{n}", f"words.txt:{30 * n + 1}")
        for n, words in enumerate(sentences)
    ]


def question_examples() -> list[QuestionExample]:
    """Return questions about short and long contexts, with several answers, one, or none."""
    asked = [
        (0, ["seven", "seven small dogs"]),
        (1, ["the red one"]),
        (2, []),
        (0, ["north"]),
        (2, ["a river"]),
        (1, []),
    ]
    return [
        QuestionExample(
            f"who saw {TEXT if n == 3 else 'what'}?",
            CONTEXTS[context],
            tuple(Answer(text, CONTEXTS[context].index(text)) for text in answers),
            id=f"q{n}",
            place=f"squad.json:{n + 1}",
        )
        for n, (context, answers) in enumerate(asked)
    ]


@cache
def encoder() -> TextEncoder:
    """Return an encoder for which some words are one token and others several."""
    known = "the old cat sat on the mat and dogs ran to a town , in"
    trained = tokenizers.get("wordpiece").component([known, known, *sorted(set("".join(CONTEXTS)))], vocab_size=200)
    counts = torch.zeros(trained.get_vocab_size(), dtype=torch.long)
    return TextEncoder(trained, make_vocabulary(trained, counts, torch.device("cpu")))


class TaskContract(Contract):
    """Laws of tasks that train a model, with states that depend on token and position alone.

    Override `examples` if the task takes examples of its own kind, or `labels` of texts.
    """

    registry = tasks
    labels: Sequence[Any] = ("bad", "good", "good", "bad", "odd", "good", "bad")

    def examples(self) -> list[Any]:
        """Return examples with labels, some of which are longer than a row."""
        made: Mapping[type, Callable[[], list[Any]]] = {
            TextExample: lambda: text_examples(self.labels),
            WordsExample: words_examples,
            QuestionExample: question_examples,
        }
        return made[self.registry.get(self.name).declared["takes"]]()

    def without_labels(self, example: Any) -> Any:
        if isinstance(example, TextExample):
            return replace(example, label=None)
        if isinstance(example, WordsExample):
            return replace(example, tags=None)
        return replace(example, answers=(), labelled=False)

    def task(self) -> Task:
        """Return a task that has learned its examples, in an earlier process."""
        facts = json.loads(json.dumps(self.component()().learn(self.examples())))
        task: Task = self.component()()
        task.know(facts)
        return task

    def head(self, task: Task, device: str = "cpu") -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return task.head(DIM, 0.1).to(device).eval()

    def batch(self, rows: Sequence[Row], device: str = "cpu") -> Batch:
        return next(iter(TaskRows(rows).in_order(len(rows), torch.device(device))))

    def outputs(self, head: nn.Module, batch: Batch, given: Tensor | None = None) -> dict[str, Tensor]:
        found = head(states(batch) if given is None else given, batch)
        return {
            name: each.float() for name, each in ({"logits": found} if isinstance(found, Tensor) else found).items()
        }

    def each_output(self, head: nn.Module, rows: Sequence[Sequence[Row]], device: str = "cpu") -> list[list[Any]]:
        """Return what a task is given for `results`: the outputs of each row, by itself."""

        kept = getattr(self.task(), "kept", dict)

        def one(row: Row) -> dict[str, Any]:
            found = kept(self.outputs(head, self.batch([row], device)))
            return {name: each[0].cpu().numpy() for name, each in found.items()}

        with torch.no_grad():
            return [[one(row) for row in each] for each in rows]

    def results(self, examples: Sequence[Any]) -> Results:
        task = self.task()
        rows = task.rows(examples, encoder(), 16)
        return task.results(examples, rows, self.each_output(self.head(task), rows))

    def test_metrics_are_declared_with_a_summary(self) -> None:
        metrics = self.component()().metrics
        assert metrics
        assert all(isinstance(metric, Metric) and metric.summary for metric in metrics.values())

    def test_what_it_learned_survives_json(self) -> None:
        task = self.component()()
        facts = task.learn(self.examples())
        assert json.loads(json.dumps(facts, allow_nan=False)) == facts
        task.know(facts)
        assert plain(task.rows(self.examples(), encoder(), 16)) == plain(
            self.task().rows(self.examples(), encoder(), 16)
        )

    def test_what_it_learned_does_not_depend_on_the_order(self) -> None:
        learn = self.component()().learn
        assert learn(self.examples()) == learn(self.examples()[::-1])

    def test_examples_without_labels_cannot_be_learned(self) -> None:
        """The error says where the example is."""
        examples = self.examples()
        examples[1] = self.without_labels(examples[1])
        with pytest.raises(DataError, match=examples[1].place):
            self.component()().learn(examples)

    @pytest.mark.parametrize("length", LENGTHS)
    def test_every_example_has_rows_that_fit(self, length: int) -> None:
        cls, sep = encoder().vocabulary.cls_id, encoder().vocabulary.sep_id
        examples = self.examples()
        found = self.task().rows(examples, encoder(), length)
        assert len(found) == len(examples)
        assert all(found), "an example has no row"
        for row in (row for rows in found for row in rows):
            assert len(row.tokens) <= length, f"a row has {len(row.tokens)} tokens"
            assert (row.tokens[0], row.tokens[-1]) == (cls, sep), "a row is not between [CLS] and [SEP]"
            assert len(row.segments) == len(row.tokens)
            assert list(row.segments) == sorted(row.segments)
            assert set(row.segments) <= {0, 1}

    @pytest.mark.parametrize("length", LENGTHS)
    def test_labels_are_numbers_or_one_for_each_token(self, length: int) -> None:
        rows = [row for rows in self.task().rows(self.examples(), encoder(), length) for row in rows]
        assert rows[0].labels
        for row in rows:
            assert row.labels.keys() == rows[0].labels.keys()
            for name, label in row.labels.items():
                assert isinstance(label, Sequence) == isinstance(rows[0].labels[name], Sequence)
                assert not isinstance(label, Sequence) or len(label) == len(row.tokens), f"{name} is not per token"
                assert np.isfinite(label).all(), f"{name} is not finite"

    def test_rows_depend_on_their_example_alone(self) -> None:
        task, examples = self.task(), self.examples()
        together = plain(task.rows(examples, encoder(), 16))
        assert together == plain(task.rows(examples[::-1], encoder(), 16))[::-1]
        assert together == [plain(task.rows([example], encoder(), 16))[0] for example in examples]

    @on_each_device
    def test_losses_reach_every_parameter(self, device: str) -> None:
        """A bias may have no influence: softmax takes it out of logits over positions."""
        task = self.task()
        batch = self.batch([row for rows in task.rows(self.examples(), encoder(), 16) for row in rows], device)
        head = self.head(task, device).train()
        given = states(batch).requires_grad_()
        terms = task.losses(self.outputs(head, batch, given), batch)
        assert terms
        loss = total(terms)
        assert loss.isfinite()
        loss.backward()  # type: ignore[no-untyped-call]
        for name, parameter in head.named_parameters():
            assert parameter.grad is not None, f"{name} has no gradient"
            assert parameter.grad.isfinite().all(), f"the gradient of {name} is not finite"
            assert parameter.ndim < 2 or parameter.grad.any(), f"the gradient of {name} is zero"
        assert given.grad is not None
        assert given.grad.isfinite().all()
        assert not given.grad[~batch.attention_mask].any(), "padding gets a gradient"

    @torch.no_grad()
    def test_losses_are_sums_over_rows(self) -> None:
        """So that micro-batches change nothing; and neither does padding, which other rows bring."""
        task = self.task()
        rows = [row for rows in task.rows(self.examples(), encoder(), 16) for row in rows]
        head = self.head(task)
        together, *each = (
            task.losses(self.outputs(head, batch), batch)
            for batch in (self.batch(rows), *(self.batch([row]) for row in rows))
        )
        for name, term in together.items():
            parts = [terms[name] for terms in each]
            assert int(term.count) == sum(int(part.count) for part in parts)
            assert float(term.sum) == pytest.approx(sum(float(part.sum) for part in parts), rel=1e-4, abs=1e-4)
            assert all(part.weight == term.weight for part in parts)

    @torch.no_grad()
    def test_counts_of_losses_do_not_depend_on_states(self) -> None:
        task = self.task()
        batch = self.batch([row for rows in task.rows(self.examples(), encoder(), 16) for row in rows])
        head = self.head(task)
        seen = task.losses(self.outputs(head, batch), batch)
        unseen = task.losses(self.outputs(head, batch, torch.zeros_like(states(batch))), batch)
        assert {name: int(term.count) for name, term in seen.items()} == {
            name: int(term.count) for name, term in unseen.items()
        }

    def test_results_are_finite_and_json(self) -> None:
        examples = self.examples()
        found = self.results(examples)
        declared = self.component()().metrics
        assert found.metrics
        assert found.metrics.keys() <= declared.keys()
        assert next(iter(declared)) in found.metrics, "the most important metric is missing"
        assert all(type(value) is float and math.isfinite(value) for value in found.metrics.values()), found.metrics
        assert [each["id"] for each in found.predictions] == [example.id for example in examples]
        for each in found.predictions:
            assert {"prediction", "label"} <= each.keys()
            assert type(each.get("correct", True)) is bool
            assert math.isfinite(each.get("certainty", 0))
            assert json.loads(json.dumps(each, allow_nan=False)) == each, "a prediction is not made of JSON values"
        for table in found.tables:
            assert table.title
            assert all(len(row) == len(table.header) for row in table.rows)
            assert all(type(cell) in (str, int, float) for row in table.rows for cell in row), table.rows

    @pytest.mark.parametrize("length", LENGTHS)
    def test_what_rows_lack_is_told_with_and_without_labels(self, length: int) -> None:
        """As metrics, which are those of the results; without labels, those that need none."""
        task, examples = self.task(), self.examples()
        rows = task.rows(examples, encoder(), length)
        found = task.lost(examples, rows)
        assert all(0 <= value <= 1 for value in found.values()), found
        results = task.results(examples, rows, self.each_output(self.head(task), rows))
        assert found.items() <= results.metrics.items()
        unlabelled = [self.without_labels(example) for example in examples]
        assert task.lost(unlabelled, task.rows(unlabelled, encoder(), length)).items() <= found.items()

    def test_examples_without_labels_have_rows_and_predictions(self) -> None:
        examples = [self.without_labels(example) for example in self.examples()]
        rows = self.task().rows(examples, encoder(), 16)
        assert [[row.tokens for row in each] for each in rows] == [
            [row.tokens for row in each] for each in self.task().rows(self.examples(), encoder(), 16)
        ]
        assert not any(row.labels for each in rows for row in each)
        found = self.results(examples)
        assert not found.metrics
        assert [each["id"] for each in found.predictions] == [example.id for example in examples]
        assert not any("label" in each or "correct" in each for each in found.predictions)

    @on_each_device
    def test_results_do_not_depend_on_labels_or_on_what_else_is_in_the_batch(self, device: str) -> None:
        """Outputs in eval mode are a function of the row's tokens."""
        task, examples = self.task(), self.examples()
        head = self.head(task, device)
        known, unknown = (
            task.rows(each, encoder(), 16) for each in (examples, [self.without_labels(each) for each in examples])
        )
        alone = self.each_output(head, unknown, device)
        with torch.no_grad():
            flat = [row for each in known for row in each]
            order = np.argsort([-len(row.tokens) for row in flat], kind="stable")
            found = getattr(task, "kept", dict)(self.outputs(head, self.batch(flat, device)))
        padded: list[Any] = [None] * len(flat)
        for place, row in enumerate(order):
            padded[row] = {name: each[place].cpu().numpy() for name, each in found.items()}
        numbers = iter(padded)
        together = [[cut(next(numbers), row) for row in each] for each in alone]
        one, other = task.results(examples, known, alone), task.results(examples, known, together)
        assert one.metrics == pytest.approx(other.metrics, abs=1e-4)
        for ours, theirs in zip(one.predictions, other.predictions, strict=True):
            expected = theirs["prediction"]
            assert ours["prediction"] == (
                pytest.approx(expected, abs=1e-4) if isinstance(expected, float) else expected
            )

    def test_the_order_of_examples_does_not_matter(self) -> None:
        one, other = self.results(self.examples()), self.results(self.examples()[::-1])
        assert one.metrics == pytest.approx(other.metrics)
        assert list(one.predictions) == list(other.predictions)[::-1]


def states(batch: Batch) -> Tensor:
    """Return Float[B T D] that depends on token and position alone, at real positions."""
    tables = [torch.randn(size, DIM, generator=torch.Generator().manual_seed(size)) for size in (500, 128)]
    of_tokens, of_places = (table.to(batch.tokens.device) for table in tables)
    found = of_tokens[batch.tokens] + of_places[: batch.tokens.shape[1]]
    return found.masked_fill(~batch.attention_mask.unsqueeze(-1), 7.0)


def total(terms: Mapping[str, Term]) -> Tensor:
    return sum((term.weight * term.sum / term.count.clamp(min=1) for term in terms.values()), torch.tensor(0.0))


def plain(rows: Sequence[Sequence[Row]]) -> list[list[Any]]:
    return [[(list(row.tokens), list(row.segments), dict(row.labels)) for row in each] for each in rows]


def cut(outputs: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Return outputs in the shapes of those of an unpadded row."""
    return {name: outputs[name][tuple(slice(size) for size in each.shape)] for name, each in like.items()}
