"""Scores of SQuAD: exact match and F1 of words, and questions without an answer.

The definitions are those of the official evaluation of SQuAD 2.0 (Rajpurkar et al. 2018), which also gives the numbers
of version 1.1. With `mixed`, each character from U+4E00 to U+9FA5 is a word, as in the evaluation of MLQA for Chinese
(Lewis et al. 2020). With `characters` every character is, as in KorQuAD 1.0 (Lim et al. 2019). Scores are from 0 to 1.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

ARTICLES = re.compile(r"\b(a|an|the)\b")
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


Segmentation = Literal["words", "mixed", "characters"]
SEGMENTS = {"mixed": re.compile(r"[\u4e00-\u9fa5]|[^\s\u4e00-\u9fa5]+"), "characters": re.compile(r"\S")}


def segments(text: str, segmentation: Segmentation = "words") -> list[str]:
    """Return the words or characters of a text in lower case, without punctuation.

    For words, ASCII punctuation and English articles are left out; otherwise punctuation of all scripts.
    """
    text = text.lower().translate(WITHOUT_PUNCTUATION)
    if segmentation == "words":
        return ARTICLES.sub(" ", text).split()
    text = "".join(character for character in text if not unicodedata.category(character).startswith("P"))
    return SEGMENTS[segmentation].findall(text)


def scores(prediction: str, answers: Sequence[str], segmentation: Segmentation = "words") -> tuple[float, float]:
    """Return exact match and F1 with the best answer.

    An answer that is empty after normalization does not count; if there is no other, the right prediction is empty.
    """
    words = segments(prediction, segmentation)
    normalized = [segments(answer, segmentation) for answer in answers]
    right = list(filter(None, normalized)) or [[]]
    return float(words in right), max(_f1(words, answer) for answer in right)


def _f1(prediction: list[str], answer: list[str]) -> float:
    if not (prediction or answer):
        return 1.0
    return 2 * (Counter(prediction) & Counter(answer)).total() / (len(prediction) + len(answer))


def best_threshold(null: ArrayLike, answered: ArrayLike, silent: ArrayLike) -> tuple[float, float | None]:
    """Return the best mean score over all thresholds, and the threshold; None is one below all `null`.

    A question is answered unless its `null` is above the threshold. The official script also separates questions with
    equal `null`, which no threshold can do; its result then depends on their order.

    null      evidence of the model that a question has no answer, Float[N]
    answered  score of its answer, Float[N]
    silent    score of no answer, Float[N]
    """
    odds, gains = np.asarray(null, np.float64), np.asarray(answered, np.float64) - np.asarray(silent, np.float64)
    order = np.argsort(odds, kind="stable")
    # Answering one question after the other changes the score by its gain; equal ones are answered together.
    last_of_equals = np.append(np.diff(odds[order]) > 0, True)
    gained = np.append(0.0, np.cumsum(gains[order])[last_of_equals])
    best = int(gained.argmax())
    mean = (float(np.sum(silent)) + float(gained[best])) / len(odds)
    threshold = float(odds[order][last_of_equals][best - 1]) if best else None
    return mean, threshold
