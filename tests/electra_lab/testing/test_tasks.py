"""The laws of tasks find mistakes: each one by the law for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from electra_lab.tasks.token_classification import EachState, TokenClassification
from electra_lab.testing import TaskContract
from registry import Batch, Results, Row, Term, WordsExample, tasks
from tests.electra_lab.testing.hold import hold


class Lawful(TaskContract):
    name = "mine"


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with tasks.isolated():
        yield


def suite(**changed: Any) -> TaskContract:
    kind = type("Mine", (TokenClassification,), {"__doc__": "Changed.", "__module__": __name__, **changed})
    tasks.register("mine", takes=WordsExample)(kind)
    return Lawful()


def fitted(change: Any) -> Any:
    return lambda self, examples: change(dict(TokenClassification.fit_labels(self, examples)), examples)


def rows(change: Any) -> Any:
    """Change the rows of each example, given its number."""

    def changed(*given: Any) -> list[Any]:
        return [change(windows, number) for number, windows in enumerate(TokenClassification.rows(*given))]

    return changed


def each_row(change: Any) -> Any:
    return rows(lambda found, number: [change(row) for row in found])


def labelled(row: Row, **labels: Any) -> Row:
    return replace(row, labels={**row.labels, **labels} if row.labels else {})


def losses(change: Any) -> Any:
    def changed(self: Any, outputs: Mapping[str, Any], batch: Batch) -> Mapping[str, Term]:
        (term,) = TokenClassification.losses(self, outputs, batch).values()
        return {"tags": change(term, outputs["logits"], batch)}

    return changed


def results(change: Any) -> Any:
    return lambda self, *given: change(TokenClassification.results(self, *given))


def predicted(change: Any) -> Any:
    return results(lambda found: replace(found, predictions=[change(prediction) for prediction in found.predictions]))


class Spare(EachState):
    """Has a layer that nothing uses."""

    def __init__(self, *sizes: Any) -> None:
        super().__init__(*sizes)
        self.spare = torch.nn.Linear(2, 2)


class Peeks(EachState):
    """Reads the labels, if there are any."""

    def forward(self, states: torch.Tensor, batch: Batch) -> torch.Tensor:
        logits = super().forward(states, batch)
        return logits + torch.nn.functional.one_hot(batch.labels["tags"].clamp(min=0), 5) if batch.labels else logits


class Leaks(EachState):
    """Depends on padding."""

    def forward(self, states: torch.Tensor, batch: Batch) -> torch.Tensor:
        return super().forward(states + states.sum(1, keepdim=True), batch)


def head(kind: type[EachState]) -> Any:
    return lambda self, dim, dropout: kind(dim, len(self.tags), dropout)


def swallow(self: Any, examples: Sequence[WordsExample]) -> Mapping[str, Any]:
    return TokenClassification.fit_labels(self, [example for example in examples if example.tags is not None])


def shuffled(found: Results) -> Results:
    return replace(found, predictions=sorted(found.predictions, key=lambda prediction: prediction["id"], reverse=True))


SURVIVES, REACH, SUMS = "what_it_learned_survives_json", "losses_reach_every_parameter", "losses_are_sums_over_rows"
BATCHED = "results_do_not_depend_on_labels_or_on_what_else_is_in_the_batch"
FIT = "every_example_has_rows_that_fit"
LABELS = "labels_are_numbers_or_one_for_each_token"
JSON = "results_are_finite_and_json"
BLIND = "examples_without_labels_have_rows_and_predictions"
MISTAKES: dict[str, tuple[str, dict[str, Any]]] = {
    "no metrics": ("metrics_are_declared_with_a_summary", {"metrics": {}}),
    "tuple": (SURVIVES, {"fit_labels": fitted(lambda facts, _: {**facts, "tags": tuple(facts["tags"])})}),
    "numbers": (SURVIVES, {"fit_labels": fitted(lambda facts, _: {**facts, 1: "one"})}),
    "order": (
        "what_it_learned_does_not_depend_on_the_order",
        {"fit_labels": fitted(lambda facts, examples: {**facts, "usual": examples[0].tags[0]})},
    ),
    "swallows": ("examples_without_labels_cannot_be_learned", {"fit_labels": swallow}),
    "no row": (FIT, {"rows": rows(lambda found, number: found if number else [])}),
    "too long": (FIT, {"rows": each_row(lambda row: replace(row, tokens=[*row.tokens[:-1], 6, row.tokens[-1]]))}),
    "no end": (FIT, {"rows": each_row(lambda row: replace(row, tokens=row.tokens[:-1], segments=row.segments[:-1]))}),
    "segments": (FIT, {"rows": each_row(lambda row: replace(row, segments=row.segments[1:]))}),
    "segment 2": (FIT, {"rows": each_row(lambda row: replace(row, segments=[2] * len(row.tokens)))}),
    "no labels": (LABELS, {"rows": each_row(lambda row: replace(row, labels={}))}),
    "short labels": (LABELS, {"rows": each_row(lambda row: labelled(row, tags=row.labels["tags"][1:]))}),
    "NaN label": (LABELS, {"rows": each_row(lambda row: labelled(row, more=math.nan))}),
    "other labels": (LABELS, {"rows": rows(lambda found, n: [labelled(row, **{f"x{n}": 1}) for row in found])}),
    "neighbours": (
        "rows_depend_on_their_example_alone",
        {"rows": rows(lambda found, number: [replace(row, segments=[number % 2] * len(row.tokens)) for row in found])},
    ),
    "spare": (REACH, {"head": head(Spare)}),
    "detached": (REACH, {"losses": losses(lambda term, x, _: replace(term, sum=term.sum.detach() + 0 * x.sum()))}),
    "padding": (REACH, {"losses": losses(lambda term, x, _: replace(term, sum=term.sum + x.square().sum()))}),
    "mean": (SUMS, {"losses": losses(lambda term, *_: replace(term, sum=term.sum / term.count.clamp(min=1)))}),
    "counts rows": (SUMS, {"losses": losses(lambda term, x, _: replace(term, count=torch.tensor(len(x) + 1)))}),
    "counts hits": (
        "counts_of_losses_do_not_depend_on_states",
        {"losses": losses(lambda term, logits, _: replace(term, count=(logits > 1).sum()))},
    ),
    "NaN": (JSON, {"results": results(lambda found: replace(found, metrics={**found.metrics, "f1": math.nan}))}),
    "undeclared": (JSON, {"results": results(lambda found: replace(found, metrics={**found.metrics, "f2": 1.0}))}),
    "no main": (JSON, {"results": results(lambda found: replace(found, metrics={"accuracy": 1.0}))}),
    "lost": (JSON, {"results": results(lambda found: replace(found, predictions=found.predictions[1:]))}),
    "no prediction": (JSON, {"results": predicted(lambda said: {k: v for k, v in said.items() if k != "prediction"})}),
    "a tuple": (JSON, {"results": predicted(lambda said: {**said, "prediction": tuple(said["prediction"])})}),
    "infinite": (JSON, {"results": predicted(lambda said: {**said, "certainty": math.inf})}),
    "ragged": (
        JSON, {"results": results(lambda found: replace(found, tables=[replace(found.tables[0], header=["one"])]))}
    ),
    "known": (BLIND, {"rows": each_row(lambda row: replace(row, labels={"tags": [0] * len(row.tokens)}))}),
    "judges": (BLIND, {"results": results(lambda found: replace(found, metrics={"f1": 1.0}))}),
    "makes up": (BLIND, {"results": predicted(lambda said: {"label": [], "correct": True, **said})}),
    "peeks": (BATCHED, {"head": head(Peeks)}),
    "leaks": (BATCHED, {"head": head(Leaks)}),
    "sorted": ("the_order_of_examples_does_not_matter", {"results": results(shuffled)}),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str) -> None:
    law, changed = MISTAKES[mistake]
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        hold(suite(**changed), law, length=16)
