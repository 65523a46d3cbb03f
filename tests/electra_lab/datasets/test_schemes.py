"""Schemes of tags, tested by encoding entities and against seqeval."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval import scheme as theirs

from electra_lab.datasets._schemes import SCHEMES, TAG, misfit, to_iob2

Entity = tuple[str, int, int]  # type, index of the first word, index after the last word


@st.composite
def sentences(draw: st.DrawFn) -> tuple[list[Entity], int]:
    """Draw entities, many of them adjacent, and the number of words."""
    place, found = 0, []
    for gap, length, kind in draw(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3), st.sampled_from("AB")))):
        found.append((kind, place + gap, place + gap + length))
        place += gap + length
    return found, place + draw(st.integers(0 if place else 1, 2))


def written(entities: list[Entity], words: int, scheme: str) -> list[str]:
    """Return the tags of entities by the definition of each scheme."""
    tags = ["O"] * words
    for number, (kind, first, end) in enumerate(entities):
        before = entities[number - 1] if number else None
        for place in range(first, end):
            alone, is_first, is_last = end - first == 1, place == first, place == end - 1
            if scheme == "BIOES":
                prefix = "S" if alone else "B" if is_first else "E" if is_last else "I"
            elif scheme == "IOB2":
                prefix = "B" if is_first else "I"
            else:
                touches = before is not None and before[0] == kind and before[2] == first
                prefix = "B" if is_first and touches else "I"
            tags[place] = f"{prefix}-{kind}"
    return tags


LETTERS = {"BILOU": {"E": "L", "S": "U"}, "BMES": {"I": "M"}}  # instead of those of BIOES


@pytest.mark.parametrize("scheme", [*SCHEMES, *LETTERS])
@settings(deadline=None, max_examples=100)
@given(drawn=sentences())
def test_entities_survive(scheme: str, drawn: tuple[list[Entity], int]) -> None:
    entities, words = drawn
    known = "BIOES" if scheme in LETTERS else scheme
    tags = [LETTERS.get(scheme, {}).get(tag[0], tag[0]) + tag[1:] for tag in written(entities, words, known)]
    assert misfit(tags, known) is None
    assert to_iob2(tags, known) == tuple(written(entities, words, "IOB2"))
    if scheme == "BMES":  # which seqeval does not have
        return
    found = theirs.Entities([tags], getattr(theirs, {"BIOES": "IOBES"}.get(scheme, scheme))).entities[0]
    assert sorted((entity.tag, entity.start, entity.end) for entity in found) == sorted(entities)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_fits_is_what_some_entities_become(scheme: str) -> None:
    kinds = [f"{prefix}-{kind}" for prefix in "BIES" for kind in "AB"]
    spans = [(kind, first, end) for kind in "AB" for first in range(4) for end in range(first + 1, 5)]
    choices: list[list[Entity]] = [[]]
    for found in choices:  # grows while it is read
        last = found[-1][2] if found else 0
        choices += [[*found, span] for span in spans if span[1] >= last]
    fitting = {tuple(written(entities, 4, scheme)) for entities in choices}
    for tags in product(["O", *kinds], repeat=4):
        assert (misfit(tags, scheme) is None) == (tags in fitting), tags


def test_the_first_misfit() -> None:
    assert misfit(["O", "B-A", "I-A", "I-B", "I-B"], "IOB2") == 3
    assert misfit(["I-A", "B-A", "O", "B-A"], "IOB1") == 3
    assert misfit(["O", "B-A", "O"], "BIOES") == 2
    assert misfit(["O", "B-A"], "BIOES") == 1


def test_tags() -> None:
    assert all(map(TAG.fullmatch, ["O", "B-A", "I", "S-B-C", "U-A"]))
    assert not any(map(TAG.fullmatch, ["X-A", "B-", "BA", ""]))
