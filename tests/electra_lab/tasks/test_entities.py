"""Scores of entities, against seqeval and by hand."""

import random

import numpy as np
import pytest
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import precision_recall_fscore_support

from electra_lab.tasks.token_classification import ENTITY_TAG, compare, entities, single_words, total

BIO = ["O", "B-X", "I-X", "B-Y", "I-Y"]
BIOES = [*BIO, "E-X", "S-X", "E-Y", "S-Y"]


def sentences(draw: random.Random, tags: list[str]) -> list[list[str]]:
    return [draw.choices(tags, k=draw.choice([1, 2, 5, 9])) for _ in range(draw.choice([1, 2, 5]))]


@pytest.mark.parametrize("tags", [BIO, BIOES, ["O"], ["B-X"]])
def test_equal_seqeval(tags: list[str]) -> None:
    draw = random.Random(0)
    for case in range(300):
        actual = sentences(draw, tags)
        predicted = []
        for sentence in actual:
            predicted.append([draw.choice([tag, draw.choice(tags)]) for tag in sentence])
        if case % 20 == 0:
            predicted = [["O"] * len(sentence) for sentence in actual]
        found = compare(map(entities, actual), map(entities, predicted))
        ours = total(found.values())
        theirs = [measure(actual, predicted, zero_division=0) for measure in (precision_score, recall_score, f1_score)]
        assert [ours.precision, ours.recall, ours.f1] == pytest.approx(theirs)
        by_type = precision_recall_fscore_support(actual, predicted, average=None, zero_division=0)
        mine = np.array([(x.precision, x.recall, x.f1, x.actual) for x in found.values()]).T
        assert mine.reshape(4, -1).tolist() == [pytest.approx(list(row)) for row in by_type]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ([], set()),
        (["U-X", "B-X", "I-X", "L-X", "U-Y"], {("X", 0, 0), ("X", 1, 3), ("Y", 4, 4)}),
        (["B-X", "M-X", "E-X"], {("X", 0, 2)}),
        (["S-X", "B-X", "E-X", "O"], {("X", 0, 0), ("X", 1, 2)}),
        (["B-X-1", "I-X-1"], {("X-1", 0, 1)}),
    ],
)
def test_entities_by_hand(tags: list[str], expected: set[tuple[str, int, int]]) -> None:
    assert entities(tags) == expected


def test_single_words() -> None:
    found = compare([single_words(["DT", "NN", "NN"])], [single_words(["DT", "DT", "NN"])])
    assert {tag: (n.precision, n.recall) for tag, n in found.items()} == {"DT": (0.5, 1.0), "NN": (1.0, 0.5)}


def test_tags_of_entities() -> None:
    assert all(map(ENTITY_TAG.fullmatch, [*BIOES, "B", "I-a-b"]))
    assert not any(map(ENTITY_TAG.fullmatch, ["NN", "o", "", "B-", "U-X", "BX", "X-B", "OO"]))
