"""The laws of measures bite: each mistake is found by the law that is about it."""

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


class MeanOfOthers(Measure):
    def __call__(self, run: Trained, folder: Path) -> Mapping[str, float]:
        return {**super().__call__(run, folder), "mean": 0.5}


class MeanOfFewer(Measure):
    def __call__(self, run: Trained, folder: Path) -> Mapping[str, float]:
        return {"mean": 37.0, "a": 37.0}


class Unknown(Measure):
    metrics: Mapping[str, Metric] = {"mean": Metric("mean", parts=("a", "c")), "a": Metric("a")}


class OtherWay(Measure):
    metrics: Mapping[str, Metric] = {**Measure.metrics, "b": Metric("b", higher_is_better=False)}


class OwnRows(Measure):
    """Reads what the cell's weights point at."""

    def __call__(self, run: Trained, folder: Path) -> Mapping[str, float]:
        network: Any = run.model
        row = int(next(network.parameters()).abs().sum() * 1000) % run.train_rows
        return {"a": float(len(list(run.train(1, [row]))))}


class Beyond(Measure):
    def __call__(self, run: Trained, folder: Path) -> Mapping[str, float]:
        run.train(1, [run.train_rows])
        return {}


class Twice(Measure):
    def references(self, base: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        return {"one": {"seed": 1}, "two": {"seed": 1}}


class Spaced(Measure):
    def references(self, base: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        return {"the first one": {"seed": 1}}


class OtherText(Measure):
    def references(self, base: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        return {"one": {"data": {**base["data"], "sequence_length": 8}}}


def suite(kind: type[Measure]) -> MeasureContract:
    class Lawful(MeasureContract):
        name = "mine"

        @property
        def kind(self) -> Any:
            return kind

        def component(self) -> Any:
            return kind

    return Lawful()


MISTAKES: dict[str, tuple[type[Measure], str, str]] = {
    "a mean of something else": (MeanOfOthers, "equal_weights_give_equal_numbers", "not the mean of its parts"),
    "a mean over fewer": (MeanOfFewer, "equal_weights_give_equal_numbers", "a mean over parts that are missing"),
    "an unknown part": (Unknown, "a_mean_names_parts_that_are_read_alike", "not declared"),
    "a part of another direction": (OtherWay, "a_mean_names_parts_that_are_read_alike", "another direction"),
    "rows of its own": (OwnRows, "reads_the_same_rows_of_training_text_for_every_cell", "depend on the cell"),
    "a row that is not there": (Beyond, "reads_the_same_rows_of_training_text_for_every_cell", "not there"),
    "one reference twice": (Twice, "its_references_are_experiments", "the same experiment as another"),
    "a name with spaces": (Spaced, "its_references_are_experiments", "not a short name"),
    "other text": (OtherText, "its_references_are_experiments", "other rows"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, tmp_path: Path) -> None:
    kind, law, reason = MISTAKES[mistake]
    given = {"tmp_path": tmp_path, "detects": True, "budget": {"steps": 10}}
    with pytest.raises(AssertionError, match=reason):
        hold(suite(kind), law, **given)
    hold(suite(Measure), law, **given)
