"""Facts from the records of a run, by hand."""

from typing import Any

import pytest

from electra_lab.analysis.records import is_number, last_evaluation, last_number, of_split, training_seconds

TRAIN: list[dict[str, Any]] = [
    {"step": 1, "split": "train", "tokens": 100, "tokens_per_second": 50.0, "seconds": 90.0, "loss": 3.0},
    {"step": 1, "split": "validation", "tokens": 9, "seconds": 1000.0, "loss": 7.0},
    {"step": 2, "split": "train", "tokens": 400, "tokens_per_second": 100.0, "seconds": 91.0, "loss": 2.0},
    {"step": 2, "split": "validation", "loss": 6.0},
]


def test_records_of_a_split_keep_their_order() -> None:
    assert [record["loss"] for record in of_split(TRAIN, "validation")] == [7.0, 6.0]


def test_the_test_counts_and_before_it_the_last_validation() -> None:
    test = {"step": 2, "split": "test", "loss": 5.0}
    assert last_evaluation([]) is None
    assert last_evaluation(TRAIN[:1]) is None
    assert last_evaluation(TRAIN) is TRAIN[3]
    assert last_evaluation([*TRAIN, test]) is last_evaluation([test, *TRAIN]) is test


def test_training_seconds_are_tokens_over_rates_without_evaluation() -> None:
    """100 tokens at 50/s and 300 more at 100/s take 5 s, regardless of `seconds`."""
    assert training_seconds(TRAIN) == pytest.approx(5.0)


@pytest.mark.parametrize("key", ["tokens", "tokens_per_second"])
@pytest.mark.parametrize("value", [None, 0])
def test_training_seconds_are_unknown_if_a_window_lacks_its_rate(key: str, value: object) -> None:
    assert training_seconds([TRAIN[0], TRAIN[2] | {key: value}]) is None
    assert training_seconds([]) is None
    assert training_seconds(TRAIN[1:2]) is None


LAST: list[tuple[str, str, float | None]] = [
    ("train", "tokens", 400.0),
    ("validation", "loss", 6.0),
    ("validation", "tokens", None),
    ("train", "absent", None),
    ("test", "loss", None),
]


@pytest.mark.parametrize(("split", "key", "expected"), LAST)
def test_the_last_record_of_a_split_counts(split: str, key: str, expected: float | None) -> None:
    assert last_number(TRAIN, split, key) == expected


@pytest.mark.parametrize(("value", "number"), [(1, True), (0.5, True), (True, False), (None, False), ("1", False)])
def test_a_number_is_not_a_flag(value: object, number: bool) -> None:
    assert is_number(value) is number
