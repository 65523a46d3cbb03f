"""Metrics of labels and numbers, against scikit-learn, scipy and their formulas."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from scipy.stats import pearsonr, rankdata, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from electra_lab.tasks._classification import CLASSIFICATION, REGRESSION, classification, confusion, regression


def labels(kinds: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield 200 pairs of labels and predictions, among them constant ones and some that are all right."""
    draw = np.random.default_rng(kinds)
    for case in range(200):
        number = int(draw.integers(1, 30))
        truth, guess = draw.integers(0, kinds, (2, number))
        if case % 10 == 0:
            guess = np.full(number, draw.integers(kinds))
        if case % 15 == 0:
            truth = np.full(number, draw.integers(kinds))
        yield truth, np.where(draw.random(number) < case / 200, truth, guess)


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("kinds", [2, 5])
def test_labels(kinds: int) -> None:
    """By their formulas, and as scikit-learn has them."""
    for case, (truth, guess) in enumerate(labels(kinds)):
        found = classification(truth, guess, kinds)
        assert found.keys() == CLASSIFICATION.keys()
        assert all(type(value) is float for value in found.values())
        table = np.zeros((kinds, kinds))
        np.add.at(table, (truth, guess), 1)
        actual, predicted, right = table.sum(1), table.sum(0), table.diagonal()
        f1 = 2 * right / np.maximum(actual + predicted, 1)
        mean = f1[1] if kinds == 2 else f1[actual + predicted > 0].mean()
        total = len(truth)  # Gorodkin (2004) has Matthews' correlation for any number of kinds
        spread = (total**2 - predicted @ predicted) * (total**2 - actual @ actual)
        matthews = (right.sum() * total - actual @ predicted) / spread**0.5 if spread else 0.0
        assert found == pytest.approx({"accuracy": right.sum() / total, "f1": mean, "matthews": matthews})
        if case % 10 == 0:
            assert confusion(truth, guess, "abcde"[:kinds]).rows == [
                [name, *row] for name, row in zip("abcde", table.tolist(), strict=False)
            ]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                average = f1_score(truth, guess, average="binary" if kinds == 2 else "macro")
                theirs = [accuracy_score(truth, guess), average, matthews_corrcoef(truth, guess)]
            assert list(found.values()) == pytest.approx(theirs)


def test_the_mean_of_f1_is_over_the_labels_that_are_there() -> None:
    assert classification(np.array([0, 0, 3]), np.array([0, 3, 3]), 5)["f1"] == pytest.approx(2 / 3)


def test_confusion() -> None:
    truth, guess = np.array([0, 0, 2, 2, 2]), np.array([0, 2, 2, 0, 2])
    table = confusion(truth, guess, ["bad", "odd", "good"])
    assert table.header == ["", "bad", "odd", "good"]
    assert table.rows == [["bad", 1, 0, 1], ["odd", 0, 0, 0], ["good", 1, 0, 2]]


def test_numbers() -> None:
    draw = np.random.default_rng(0)
    for case in range(1000):
        truth = draw.integers(0, 4, 2 + case % 20) * 1.0  # with ties
        guess = np.round(truth * (case % 3 - 1) + draw.normal(size=len(truth)), case % 2)
        found = regression(truth, guess)
        assert found.keys() == REGRESSION.keys()
        if len(set(truth)) == 1 or len(set(guess)) == 1:
            assert found == {"pearson": 0.0, "spearman": 0.0}
            continue
        if case % 10 == 0:
            assert list(found.values()) == pytest.approx([pearsonr(truth, guess)[0], spearmanr(truth, guess)[0]])
        ranked = np.corrcoef(rankdata(truth), rankdata(guess))[0, 1]
        assert found == pytest.approx({"pearson": np.corrcoef(truth, guess)[0, 1], "spearman": ranked})
        assert all(type(value) is float for value in found.values())


@pytest.mark.parametrize("guess", [[1.0, 1.0, 1.0], [1.0]])
def test_constant_predictions_have_no_correlation(guess: list[float]) -> None:
    truth = np.arange(len(guess), dtype=float)
    assert regression(truth, np.array(guess)) == regression(np.array(guess), truth) == {"pearson": 0.0, "spearman": 0.0}
