"""Entities in tagged sentences, and how well they are found."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ENTITY_TAG = re.compile(r"O|[BIES](-.+)?")

Entity = tuple[str, int, int]  # its type, and its first and last word


@dataclass(frozen=True)
class Found:
    """How many entities there are, were predicted, and were predicted with the right words and type."""

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
    """Return each word as an entity of its own, whose type is its tag."""
    return {(tag, place, place) for place, tag in enumerate(tags)}


def compare(actual: Iterable[set[Entity]], predicted: Iterable[set[Entity]]) -> dict[str, Found]:
    """Compare the entities of sentences, by type."""
    counts: tuple[Counter[str], ...] = Counter(), Counter(), Counter()
    for theirs, ours in zip(actual, predicted, strict=True):
        for count, some in zip(counts, (theirs, ours, theirs & ours), strict=True):
            count.update(kind for kind, *_ in some)
    kinds = sorted(counts[0].keys() | counts[1].keys())
    return {kind: Found(*(count[kind] for count in counts)) for kind in kinds}


def total(found: Iterable[Found]) -> Found:
    """Return the counts over all types."""
    sums = [0, 0, 0]
    for each in found:
        sums = [sums[0] + each.actual, sums[1] + each.predicted, sums[2] + each.correct]
    return Found(*sums)
