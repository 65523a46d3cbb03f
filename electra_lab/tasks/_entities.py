"""Entities in tagged sentences; precision and recall of predictions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

ENTITY_TAG = re.compile(r"O|[BIES](-.+)?")

Entity = tuple[str, int, int]  # its type, and its first and last word


@dataclass(frozen=True)
class Found:
    """Numbers of entities, of predictions, and of predictions with the right words and type."""

    actual: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float:
        return self.correct / max(self.predicted, 1)

    @property
    def recall(self) -> float:
        return self.correct / max(self.actual, 1)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall; 0 if there is nothing to find and nothing was predicted."""
        return 2 * self.correct / max(self.actual + self.predicted, 1)


def entities(tags: Sequence[str]) -> set[Entity]:
    """Return the entities of a sentence as the script of the CoNLL shared tasks, conlleval, counts them.

    An entity begins wherever the type changes, even without a B.
    """
    from seqeval.metrics.sequence_labeling import get_entities

    return set(get_entities(list(tags)))


def single_words(tags: Sequence[str]) -> set[Entity]:
    """Return each word as an entity whose type is its tag."""
    return {(tag, place, place) for place, tag in enumerate(tags)}


def compare(actual: Iterable[set[Entity]], predicted: Iterable[set[Entity]]) -> dict[str, Found]:
    """Compare the entities of sentences, by type."""
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])  # as in Found
    for theirs, ours in zip(actual, predicted, strict=True):
        for place, found in enumerate((theirs, ours, theirs & ours)):
            for kind, *_ in found:
                counts[kind][place] += 1
    return {kind: Found(*numbers) for kind, numbers in sorted(counts.items())}


def total(found: Iterable[Found]) -> Found:
    """Return the counts over all types."""
    columns = zip((0, 0, 0), *map(astuple, found), strict=True)
    return Found(*map(sum, columns))
