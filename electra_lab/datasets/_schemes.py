"""Schemes of tags, which mark the first and the last word of an entity."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

TAG = re.compile(r"O|[BIESLUM](-.+)?")
OUTSIDE = "O"
OTHER_MARKS = {"L": "E", "U": "S", "M": "I"}  # BILOU and BMES are BIOES with other letters


def _continues(before: str, tag: str) -> bool:
    """Return whether both words are inside entities of the same type."""
    return OUTSIDE not in (before, tag) and before[1:] == tag[1:]


def _iob1(before: str, tag: str) -> bool:
    """B begins an entity that follows another one of its type, I all others."""
    return tag == OUTSIDE or tag[0] == "I" or (tag[0] == "B" and _continues(before, tag))


def _iob2(before: str, tag: str) -> bool:
    """B begins every entity."""
    return tag == OUTSIDE or tag[0] == "B" or (tag[0] == "I" and _continues(before, tag))


def _bioes(before: str, tag: str) -> bool:
    """B begins an entity and E ends it; S is an entity of one word."""
    if before[0] in "BI":
        return tag[0] in "IE" and _continues(before, tag)
    return tag[0] in "OBS"


SCHEMES: dict[str, Callable[[str, str], bool]] = {"IOB2": _iob2, "BIOES": _bioes, "IOB1": _iob1}


def in_bioes(tags: Sequence[str]) -> list[str]:
    """Return tags with the letters of BIOES."""
    return [OTHER_MARKS.get(tag[0], tag[0]) + tag[1:] for tag in tags]


def misfit(tags: Sequence[str], scheme: str) -> int | None:
    """Return the first word whose tag does not fit the scheme; None if all do."""
    fits = SCHEMES[scheme]
    for place, (before, tag) in enumerate(pairwise([OUTSIDE, *in_bioes(tags), OUTSIDE])):
        if not fits(before, tag):
            return min(place, len(tags) - 1)
    return None


def to_iob2(tags: Sequence[str], scheme: str) -> tuple[str, ...]:
    """Return the tags of a sentence in IOB2."""
    converted = []
    for before, tag in pairwise([OUTSIDE, *in_bioes(tags)]):
        begins = tag[0] in "BS" or (scheme == "IOB1" and not _continues(before, tag))
        mark = "B" if begins else "I"
        converted.append(tag if tag == OUTSIDE else mark + tag[1:])
    return tuple(converted)
