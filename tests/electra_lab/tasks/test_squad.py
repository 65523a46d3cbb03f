"""Scores of answers, against torchmetrics and by hand."""

import random
import re
import string
import unicodedata
from typing import Any

import numpy as np
import pytest
from torchmetrics.functional.text import squad

from electra_lab.tasks._squad import best_threshold, scores, segments

PARTS = ["the", "The", "a", "An", "cat", "Cat.", "cats", "the-cat", "...", "“cat”", "naïve", "NAÏVE", "İstanbul"]
PARTS += ["東京", "don't", "dont", "1,000", "1000", "anthem", "A.", "\u00a0", "\u2014", "$5", "5", "", "ﬁve", "a\u0301"]
SPACES = [" ", "  ", "\t", "\n", "\u3000", ""]


def test_equal_torchmetrics() -> None:
    """With answers that normalisation does not make empty, or with an empty one."""
    draw = random.Random(0)
    seen = set()

    def text() -> str:
        return "".join(draw.choice(PARTS) + draw.choice(SPACES) for _ in range(draw.choice([0, 1, 2, 3, 6])))

    for _ in range(400):
        drawn = [text() for _ in range(draw.randint(0, 3))]
        answers = list(filter(segments, drawn)) or [""]
        prediction = draw.choice([text(), draw.choice(answers), draw.choice(answers).upper() + "!"])
        target = {"answers": {"text": answers, "answer_start": [0] * len(answers)}, "id": "1"}
        theirs = squad([{"prediction_text": prediction, "id": "1"}], [target])
        ours = scores(prediction, answers)
        assert [100 * share for share in ours] == pytest.approx([float(theirs["exact_match"]), float(theirs["f1"])])
        seen.add((ours[0], 0 < ours[1] < 1, answers == [""], not segments(prediction)))
    assert len(seen) == 6, "the cases are too much alike"


def is_punctuation(character: str) -> bool:
    return unicodedata.category(character).startswith("P") or character in string.punctuation


def of_mlqa(text: str) -> list[str]:
    """Return the segments of a Chinese text as in mlqa_evaluation_v1.py of facebookresearch/MLQA."""
    text = "".join(character for character in text.lower() if not is_punctuation(character))
    found: list[str] = []
    rest = ""
    for character in text:
        if re.search(r"[\u4e00-\u9fa5]", character):
            found += [*rest.split(), character]
            rest = ""
        else:
            rest += character
    return [*found, *rest.split()]


def of_korquad(text: str) -> list[str]:
    """Return the characters that the evaluation of KorQuAD 1.0 counts, with the punctuation of MLQA."""
    words = "".join(character for character in text.lower() if not is_punctuation(character)).split()
    return [character for word in words for character in word]


@pytest.mark.parametrize(("segmentation", "theirs"), [("mixed", of_mlqa), ("characters", of_korquad)])
def test_segments_of_languages_without_spaces(segmentation: Any, theirs: Any) -> None:
    draw = random.Random(0)
    words = "中国 在2008年， 《红楼梦》 上海a 서울에서. 東京タワー かな 。 $ + กรุงเทพ"
    parts = [*PARTS, *words.split(), "의 나라"]
    scored = set()
    text = lambda: "".join(draw.choice(parts) + draw.choice(SPACES) for _ in range(4))  # noqa: E731
    for _ in range(400):
        answer, reference = text(), text()
        assert segments(answer, segmentation) == theirs(answer)
        exact, f1 = scores(answer, [reference, answer + "！"][: draw.choice([1, 1, 2])], segmentation)
        common = sum(min(theirs(answer).count(part), theirs(reference).count(part)) for part in {*theirs(answer)})
        by_hand = 2 * common / max(len(theirs(answer) + theirs(reference)), 1)
        assert f1 == pytest.approx(by_hand) or (exact, f1) == (1.0, 1.0)
        scored.add((exact, 0 < f1 < 1))
    assert len(scored) == 3, "the cases are too much alike"


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("", [], 1, 1),
        ("cat", [], 0, 0),
        ("the", [], 1, 1),
        ("", ["cat"], 0, 0),
        ("", ["the"], 1, 1),
        ("", ["the", "cat"], 0, 0),  # an answer that normalisation makes empty is ignored if there is another
        ("old cat", ["dog", "cat", "very old cat"], 0, 4 / 5),
    ],
)
def test_by_hand(prediction: str, answers: list[str], exact: float, f1: float) -> None:
    assert scores(prediction, answers) == pytest.approx((exact, f1))


def test_the_best_threshold_is_better_than_all_others() -> None:
    draw = np.random.default_rng(0)
    for _ in range(300):
        number = int(draw.integers(1, 12))
        null = draw.integers(-3, 4, number).astype(float)
        answered, silent = draw.choice([0.0, 0.25, 1.0], (2, number))

        def mean(threshold: float, parts: tuple[np.ndarray, ...] = (null, answered, silent)) -> float:
            return float(np.where(parts[0] > threshold, parts[2], parts[1]).mean())

        best, threshold = best_threshold(null, answered, silent)
        assert best == pytest.approx(max(mean(scores_) for scores_ in (-np.inf, *null)))
        assert best == pytest.approx(mean(-np.inf if threshold is None else threshold))


def test_silence_is_preferred_to_an_answer_that_gains_nothing() -> None:
    assert best_threshold([1.0, 2.0], [0.0, 0.0], [0.0, 1.0]) == (0.5, None)
    assert best_threshold([1.0, 2.0, 2.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]) == (pytest.approx(2 / 3), 1.0)
