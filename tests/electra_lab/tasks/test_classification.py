"""Metrics of labels and numbers, against scikit-learn, scipy and their formulas."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from sklearn.dummy import DummyClassifier
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from electra_lab.data.task_rows import TaskRows
from electra_lab.tasks._classification import (
    CLASSIFICATION,
    REGRESSION,
    classification,
    confusion,
    constants,
    regression,
)
from electra_lab.tasks.text_classification import TextClassification
from electra_lab.tasks.token_classification import TokenClassification
from electra_lab.testing.tasks import encoder
from registry import TextExample, WordsExample
from registry.errors import DataError, UnknownText


def labels(kinds: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    draw = np.random.default_rng(kinds)
    for case in range(100):
        number = int(draw.integers(1, 30))
        truth, guess = draw.integers(0, kinds, (2, number))
        if case % 10 == 0:
            guess = np.full(number, draw.integers(kinds))
        if case % 15 == 0:
            truth = np.full(number, draw.integers(kinds))
        yield truth, np.where(draw.random(number) < case / 100, truth, guess)


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("kinds", [2, 5])
def test_labels(kinds: int) -> None:
    for case, (truth, guess) in enumerate(labels(kinds)):
        found = classification(truth, guess, kinds)
        assert {*found, *constants(found)} == {*CLASSIFICATION}
        assert all(type(value) is float for value in found.values())
        table = np.zeros((kinds, kinds))
        np.add.at(table, (truth, guess), 1)
        actual, predicted, right = table.sum(1), table.sum(0), table.diagonal()
        f1 = 2 * right / np.maximum(actual + predicted, 1)
        mean = f1[1] if kinds == 2 else f1[actual + predicted > 0].mean()
        total = len(truth)  # Gorodkin (2004) defines Matthews' correlation for any number of classes
        spread = (total**2 - predicted @ predicted) * (total**2 - actual @ actual)
        matthews = (right.sum() * total - actual @ predicted) / spread**0.5 if spread else 0.0
        assert found == pytest.approx({"accuracy": right.sum() / total, "f1": mean, "matthews": matthews})
        if case % 10 == 0:
            rows = [[name, *row] for name, row in zip("abcde", table.tolist(), strict=False)]
            assert confusion(truth, guess, "abcde"[:kinds]).rows == rows
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                average = f1_score(truth, guess, average="binary" if kinds == 2 else "macro")
                theirs = [accuracy_score(truth, guess), average, matthews_corrcoef(truth, guess)]
            assert list(found.values()) == pytest.approx(theirs)


def test_confusion() -> None:
    table = confusion(np.array([0, 0, 2, 2, 2]), np.array([0, 2, 2, 0, 2]), ["bad", "odd", "good"])
    assert table.header == ["", "bad", "odd", "good"]
    assert table.rows == [["bad", 1, 0, 1], ["odd", 0, 0, 0], ["good", 1, 0, 2]]


def test_of_many_labels_the_pairs_confused_most_are_shown() -> None:
    """Pairs are counted by direction; pairs with equal counts are in the order of their names."""
    names = [f"n{n}" for n in range(31)]
    truth, guess = np.array([7, 30, 30, 3, 7, 7, 5, 5]), np.array([30, 7, 7, 3, 30, 30, 6, 4])
    table = confusion(truth, guess, names)
    assert table.header == ["label", "prediction", "examples"]
    assert list(map(list, table.rows)) == [["n7", "n30", 3], ["n30", "n7", 2], ["n5", "n4", 1], ["n5", "n6", 1]]
    assert len(confusion(truth % 30, guess % 30, names[:30]).rows) == 30
    wrong = np.arange(200)
    assert len(confusion(wrong, (wrong + 1) % 200, [str(n) for n in wrong]).rows) == 50


def test_many_labels_take_little_memory_and_time() -> None:
    draw = np.random.default_rng(0)
    truth = draw.integers(0, 100_000, 5000)
    guess = np.where(draw.random(5000) < 0.5, truth, draw.integers(0, 100_000, 5000))
    found = classification(truth, guess, 100_000)
    assert found["matthews"] == pytest.approx(found["accuracy"], abs=1e-3)
    assert len(confusion(truth, guess, [str(n) for n in range(100_000)]).rows) == 50
    small = np.unique(np.concatenate([truth[:400], guess[:400]]), return_inverse=True)[1]
    assert classification(small[:400], small[400:], 999)["matthews"] == matthews_corrcoef(truth[:400], guess[:400])


@pytest.mark.parametrize("kinds", ["ab", "bab", "abd"])
def test_labels_that_training_lacks_are_errors(kinds: str) -> None:
    """They count in all metrics and in the table, but not in the loss."""
    task = TextClassification()
    task.set_labels(task.fit_labels([TextExample("x", label=kind) for kind in kinds]))
    labels, guesses = "abcaaacb", [0, 1, 1, 0, 1, 0, 0, 1]
    examples = [TextExample("the cat", label=label, id=str(n)) for n, label in enumerate(labels)]
    rows = task.rows(examples, encoder(), 16)
    logits = torch.randn(8, len({*kinds}), generator=torch.Generator().manual_seed(0))
    logits[range(8), guesses] += 9
    batch = next(iter(TaskRows([row for (row,) in rows]).in_order(8, torch.device("cpu"))))
    (term,) = task.losses({"logits": logits}, batch).values()
    known = [n for n, label in enumerate(labels) if label != "c"]
    chosen = logits.log_softmax(1)[known, [sorted({*kinds}).index(labels[n]) for n in known]]
    assert (float(term.sum), int(term.count)) == (pytest.approx(-float(chosen.sum()), rel=1e-5), 6)
    kept = task.kept({"logits": logits})
    outputs = []
    for n in range(8):
        outputs.append([{name: tensor[n].numpy() for name, tensor in kept.items()}])
    found = task.results(examples, rows, outputs)
    always = []
    for kind in {*kinds}:
        constant = DummyClassifier(strategy="constant", constant=kind).fit([[0]] * len(kinds), [*kinds])
        always.append(constant.predict([[0]] * 8))
    few = len({*kinds}) == 2  # of more labels, the mean of F1 has no best constant answer
    f1_of_constants = [
        f1_score([*labels], answers, labels=["b"], average="macro", zero_division=0) for answers in always
    ]
    sure = [prediction["certainty"] for prediction in found.predictions]
    assert sure == pytest.approx(logits.double().softmax(1).max(1).values.tolist())
    said = [prediction["prediction"] for prediction in found.predictions]
    f1 = f1_score([*labels], said, labels=["b"] if len({*kinds}) == 2 else None, average="macro", zero_division=0)
    assert found.metrics == pytest.approx({
        "accuracy": 5 / 8, "f1": f1, "matthews": matthews_corrcoef([*labels], said),
        "cut_examples": 0.0, "unseen_labels": 2 / 8, "constant_matthews": 0.0,
        "constant_accuracy": max(accuracy_score([*labels], answers) for answers in always),
        **({"constant_f1": max(f1_of_constants)} if few else {}),
    })  # fmt: skip
    assert task.truncation(examples, rows)["unseen_labels"] == 2 / 8
    assert "unseen_labels" not in task.truncation(examples[:2], rows[:2])
    assert list(found.tables[0].rows[-1])[:3] == ["c", 1, 1]
    assert not found.predictions[2]["correct"]
    assert sum(tensor.numel() for tensor in kept.values()) == 16, "memory does not grow with the labels"


def test_labels_have_the_order_of_their_numbers() -> None:
    def fitted(*labels: str) -> Any:
        facts = TextClassification().fit_labels([TextExample("x", label=label, id=label) for label in labels])
        words = [WordsExample(("x",), (label,), id=label) for label in labels]
        assert TokenClassification(scheme="plain").fit_labels(words)["tags"] == facts["labels"]
        return facts["labels"]

    assert fitted(*map(str, range(12))) == [*map(str, range(12))]
    assert fitted("10", "-2", "1.5", "9") == ["-2", "1.5", "9", "10"]
    assert fitted("10", "9", "b") == ["10", "9", "b"]
    with pytest.raises(DataError, match=r"'1' and '1\.0'"):
        fitted("2", "1.0", "1")


def test_texts_without_tokens_are_counted() -> None:
    """Of a pair, either text; the name of a special token is ordinary text."""
    task = TextClassification()
    task.set_labels({"labels": ["a", "b"], "usual": "a"})
    pairs = [("cat", None), ("", None), ("cat", "mat"), ("", "mat"), ("cat", "\u200d"), ("", ""), ("[SEP]", "mat")]
    examples = [TextExample(text, pair, "a", str(n)) for n, (text, pair) in enumerate(pairs)]
    with pytest.warns(UnknownText):
        rows = task.rows(examples, encoder(), 16)
    assert task.truncation(examples, rows) == {"cut_examples": 0.0, "empty_examples": 4 / 7}
    assert task.truncation(examples[:1], rows[:1]) == {"cut_examples": 0.0}


def test_numbers() -> None:
    draw = np.random.default_rng(0)
    for case in range(200):
        truth = draw.integers(0, 4, 2 + case % 20) * 1.0  # with ties
        guess = np.round(truth * (case % 3 - 1) + draw.normal(size=len(truth)), case % 2)
        found = regression(truth, guess)
        expected = {"pearson": 0.0, "spearman": 0.0}
        if len(set(truth)) > 1 < len(set(guess)):
            expected = {"pearson": pearsonr(truth, guess)[0], "spearman": spearmanr(truth, guess)[0]}
        assert {*found, *constants(found)} == {*REGRESSION}
        assert found == pytest.approx(expected)
        assert all(type(value) is float for value in found.values())


def test_constant_predictions_have_no_correlation() -> None:
    truth = np.arange(3.0)
    assert regression(truth, np.ones(3)) == regression(np.ones(3), truth) == {"pearson": 0.0, "spearman": 0.0}
    assert regression(truth[:1], truth[:1]) == {"pearson": 0.0, "spearman": 0.0}
