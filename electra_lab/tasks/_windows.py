"""Windows over texts that are longer than a row."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Window:
    """The tokens of a text from `first` up to `end`, which the network reads at once.

    best  the tokens that have more context in this window than in any other; the shorter side counts
    """

    first: int
    end: int
    best: range


def windows(total: int, room: int, stride: int) -> list[Window]:
    """Cover a text of `total` tokens by windows of `room` tokens, each `stride` after the one before.

    The stride is at most half the room: then the context of each token in its best window reaches the end of the text
    or a quarter of the window on either side. A text without tokens has one empty window.
    """
    stride = min(stride, max(1, room // 2))
    firsts = range(0, max(1, total - room + stride), stride)
    ends = [min(first + room, total) for first in firsts]
    middles = [(end + first + 1) // 2 for end, first in zip(ends, firsts[1:], strict=False)]  # of the overlaps
    bests = pairwise([0, *middles, total])
    return [Window(first, end, range(*best)) for first, end, best in zip(firsts, ends, bests, strict=True)]
