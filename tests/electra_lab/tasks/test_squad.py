"""Scores of answers, against torchmetrics and by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest
from torchmetrics.functional.text import squad

from electra_lab.tasks._squad import best_threshold, normalised, scores

PARTS = ["the", "The", "a", "An", "cat", "Cat.", "cats", "the-cat", "...", "“cat”", "naïve", "NAÏVE", "İstanbul"]
PARTS += ["東京", "don't", "dont", "1,000", "1000", "anthem", "A.", "\u00a0", "\u2014", "$5", "5", "", "ﬁve", "a\u0301"]
SPACES = [" ", "  ", "\t", "\n", "\u3000", ""]


def test_equal_torchmetrics() -> None:
    """With answers of which normalisation leaves something, or with an empty one."""
    draw = random.Random(0)
    seen = set()

    def text() -> str:
        return "".join(draw.choice(PARTS) + draw.choice(SPACES) for _ in range(draw.choice([0, 1, 2, 3, 6])))

    for _ in range(1000):
        answers = [each for each in (text() for _ in range(draw.randint(0, 3))) if normalised(each)] or [""]
        prediction = draw.choice([text(), draw.choice(answers), draw.choice(answers).upper() + "!"])
        target = {"answers": {"text": answers, "answer_start": [0] * len(answers)}, "id": "1"}
        theirs = squad([{"prediction_text": prediction, "id": "1"}], [target])
        ours = scores(prediction, answers)
        assert [100 * each for each in ours] == pytest.approx([float(theirs["exact_match"]), float(theirs["f1"])])
        seen.add((ours[0], 0 < ours[1] < 1, answers == [""], not normalised(prediction)))
    assert len(seen) == 6, "the cases are too much alike"


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("", [], 1, 1),
        ("cat", [], 0, 0),
        ("the", [], 1, 1),
        ("", ["cat"], 0, 0),
        ("", ["the"], 1, 1),
        ("", ["the", "cat"], 0, 0),  # the answer of which nothing is left does not count beside another
        ("The Cat!", ["a cat"], 1, 1),
        ("old cat", ["cat"], 0, 2 / 3),
        ("old cat", ["dog", "cat", "very old cat"], 0, 4 / 5),
        ("cat cat", ["cat"], 0, 2 / 3),
        ("theatre", ["atre"], 0, 0),
    ],
)
def test_by_hand(prediction: str, answers: list[str], exact: float, f1: float) -> None:
    assert scores(prediction, answers) == pytest.approx((exact, f1))


def test_the_best_threshold_is_better_than_all_others() -> None:
    """Of the numbers themselves and one below them; ties included."""
    draw = np.random.default_rng(0)
    for _ in range(300):
        number = int(draw.integers(1, 12))
        null = draw.integers(-3, 4, number).astype(float)
        answered, silent = draw.choice([0.0, 0.25, 1.0], (2, number))

        def mean(threshold: float, parts: tuple[np.ndarray, ...] = (null, answered, silent)) -> float:
            return float(np.where(parts[0] > threshold, parts[2], parts[1]).mean())

        best, threshold = best_threshold(null, answered, silent)
        assert best == pytest.approx(max(mean(each) for each in (-np.inf, *null)))
        assert best == pytest.approx(mean(-np.inf if threshold is None else threshold))


def test_silence_is_preferred_to_an_answer_that_gains_nothing() -> None:
    assert best_threshold([1.0, 2.0], [0.0, 0.0], [0.0, 1.0]) == (0.5, None)
    assert best_threshold([1.0, 2.0, 2.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]) == (pytest.approx(2 / 3), 1.0)
