"""The laws of measures find mistakes: each one by the law for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from electra_lab.testing import MeasureContract
from registry import Metric, Trained
from tests.electra_lab.testing.hold import hold


class Measure:
    """A mean of two numbers of the text, with two references."""

    same_rows = True
    metrics: Mapping[str, Metric] = {"mean": Metric("mean", parts=("a", "b")), "a": Metric("a"), "b": Metric("b")}

    def references(self, base: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        return {"one": {"seed": 1}, "two": {"seed": 2}}

    def prepare(self, run: Trained, references: Mapping[str, Trained], folder: Path) -> None:
        assert list(references) == ["one", "two"]
        (folder / "names.txt").write_text(" ".join(references))

    def __call__(self, run: Trained, folder: Path) -> Mapping[str, float]:
        read = sum(len(batch) for batch in run.train(4, [3, 1, 44]))
        rows = sum(len(batch) for batch in run.test(5))
        return {"mean": (rows + read) / 2, "a": float(rows), "b": float(read)}


def own_rows(self: Measure, run: Trained, folder: Path) -> Mapping[str, float]:
    """Read the rows that the cell's weights point to."""
    network: Any = run.model
    row = int(next(network.parameters()).abs().sum() * 1000) % run.train_rows
    return {"a": float(len(list(run.train(1, [row]))))}


def beyond(self: Measure, run: Trained, folder: Path) -> Mapping[str, float]:
    run.train(1, [run.train_rows])
    return {}


def suite(kind: type[Measure]) -> MeasureContract:
    return type("Suite", (MeasureContract,), {"name": "mine", "kind": kind, "component": lambda _: kind})()


NUMBERS, ALIKE = "equal_weights_give_equal_numbers", "parts_of_a_mean_have_one_unit_and_direction"
ROWS = "reads_the_same_rows_of_training_text_for_every_cell"
REFERENCES = "its_references_are_experiments"
UNKNOWN = {"mean": Metric("mean", parts=("a", "c")), "a": Metric("a")}
# The law that finds a mistake, its message, and the mistake.
MISTAKES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a mean of something else": (NUMBERS, "not the mean of its parts",
                                 {"__call__": lambda *given: {**Measure.__call__(*given), "mean": 0.5}}),
    "a mean over fewer": (NUMBERS, "a mean over parts that are missing",
                          {"__call__": lambda *_: {"mean": 37.0, "a": 37.0}}),
    "an unknown part": (ALIKE, "not declared", {"metrics": UNKNOWN}),
    "a part of another direction": (ALIKE, "another direction",
                                    {"metrics": {**Measure.metrics, "b": Metric("b", higher_is_better=False)}}),
    "rows of its own": (ROWS, "depend on the cell", {"__call__": own_rows}),
    "a row that is not there": (ROWS, "not there", {"__call__": beyond}),
    "one reference twice": (REFERENCES, "the same experiment as another",
                            {"references": lambda *_: {"one": {"seed": 1}, "two": {"seed": 1}}}),
    "a name with spaces": (REFERENCES, "not a short name", {"references": lambda *_: {"the first one": {"seed": 1}}}),
    "other text": (REFERENCES, "other rows", {
        "references": lambda self, base: {"one": {"data": {**base["data"], "sequence_length": 8}}}}),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, tmp_path: Path) -> None:
    law, reason, changed = MISTAKES[mistake]
    given = {"tmp_path": tmp_path, "detects": True, "budget": {"steps": 10}}
    with pytest.raises(AssertionError, match=reason):
        hold(suite(type("Wrong", (Measure,), changed)), law, **given)
    hold(suite(Measure), law, **given)
