"""The best answer in a window, from what the layers on top of the network say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from electra_lab.tasks._windows import Window
from registry import Encoded

Outputs = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Read:
    """What a row reads of its example."""

    context: Encoded
    window: Window  # of the context
    begin: int  # the position of the window's first token in the row
    cut: bool  # the question is longer than what is read of it


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of the context from `first` to `last`, as an answer."""

    score: float  # for comparison with other windows
    probability: float  # in its window
    first: int
    last: int


def joint_span(read: Read, output: Outputs) -> Span | None:
    """Return the best of the spans that _spans.Joint tried, of those that begin where the window is the best one."""
    to_context = read.window.first - read.begin
    first, last = (output[name].astype(int) + to_context for name in ("first", "last"))
    best = read.window.best
    score = np.where((first >= best.start) & (first < best.stop), output["score"], -np.inf)
    chosen = int(score.argmax())
    if score[chosen] == -np.inf:
        return None
    return Span(float(score[chosen]), float(np.exp(score[chosen])), int(first[chosen]), int(last[chosen]))


def independent_span(read: Read, output: Outputs, longest: int) -> Span | None:
    """Return the best span of at most `longest` tokens, of those that begin where the window is the best one.

    All of them are tried, not only those with the best starts and ends.
    """
    window, best = read.window, read.window.best
    if not best:
        return None
    logits = [output[name].astype(np.float64) for name in ("start", "end")]
    start, end = (each[read.begin : read.begin + window.end - window.first] for each in logits)
    ends = sliding_window_view(np.append(end, np.full(longest - 1, -np.inf)), longest)
    inside = slice(best.start - window.first, best.stop - window.first)
    sums = start[inside, None] + ends[inside]
    first, tokens = divmod(int(sums.argmax()), longest)
    score = float(sums[first, tokens])
    of_all = sum(float(np.logaddexp.reduce(each)) for each in logits)
    return Span(score, float(np.exp(score - of_all)), best.start + first, best.start + first + tokens)
