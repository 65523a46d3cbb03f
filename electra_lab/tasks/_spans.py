"""Layers that find an answer, as in google-research/electra's qa_tasks.py, and the best span in a window."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.tasks._texts import transform_of
from electra_lab.tasks._windows import Window
from registry import Batch, Encoded

HIDDEN = 512
NEVER = -1e4  # the logit of positions that cannot be chosen
NO_SPAN = -1e30  # the score where there is no span; outputs must be finite

Outputs = Mapping[str, NDArray[Any]]


def choices(batch: Batch) -> Bool[Tensor, "B T"]:
    """Return the positions that may be chosen: [CLS], which means no answer, the context and its [SEP]."""
    visible = batch.attention_mask & (batch.segments == 1)
    visible[:, 0] = True
    return visible


class Independent(nn.Module):
    """Independent logits of the start and the end of an answer; with `classifier` also of no answer.

    layers  names of the layers of transformers' class, for `transform_of`
    """

    def __init__(self, dim: int, dropout: float, layers: Collection[str] = (), *, classifier: bool) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.transform = transform_of(dim, layers)
        self.span = nn.Linear(dim, 2)
        self.no_answer = NoAnswer(dim) if classifier else None

    def forward(self, states: Float[Tensor, "B T D"], batch: Batch) -> dict[str, Tensor]:
        states, hidden = self.prepared(states), ~choices(batch)
        start, end = self.span(states).float().masked_fill(hidden.unsqueeze(-1), NEVER).unbind(-1)  # [B T] each
        outputs = {"start": start, "end": end}
        return outputs if self.no_answer is None else outputs | {"no_answer": self.no_answer(states, start)}

    def prepared(self, states: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Return the input of the last layers."""
        prepared: Tensor = self.dropout(states if self.transform is None else self.transform.transformed(states))
        return prepared


class Joint(nn.Module):
    """Logits of an answer's start, and of its end given the start.

    In training, `end` are the logits given the right start. In evaluation, each of the `beam` most likely starts in the
    context is paired with its most likely end, for spans of at most `longest` tokens: `first` and `last` are positions
    in the row, `score` is their joint log-probability, or NO_SPAN.
    """

    def __init__(self, dim: int, dropout: float, *, classifier: bool, beam: int, longest: int) -> None:
        super().__init__()
        self.beam, self.longest = beam, longest
        self.dropout = nn.Dropout(dropout)
        self.start = nn.Linear(dim, 1)
        self.pair = nn.Linear(2 * dim, HIDDEN)  # of the states at start and end
        self.end = nn.Linear(HIDDEN, 1)
        self.no_answer = NoAnswer(dim) if classifier else None

    def forward(self, states: Float[Tensor, "B T D"], batch: Batch) -> dict[str, Tensor]:
        states, visible = self.dropout(states), choices(batch)
        start = self.start(states).squeeze(-1).float().masked_fill(~visible, NEVER)
        outputs = {"start": start}
        if self.no_answer is not None:
            outputs["no_answer"] = self.no_answer(states, start)
        # The layer on pairs is linear, so its product with each state is computed once.
        of_start, of_end = self.pair.weight.chunk(2, dim=1)
        starts, ends = F.linear(states, of_start), F.linear(states, of_end, self.pair.bias)
        if "start" in batch.labels:
            outputs["end"] = self._ends(starts, ends, batch.labels["start"], visible)
        return outputs if self.training else outputs | self._spans(starts, ends, start, visible)

    def _ends(
        self,
        starts: Float[Tensor, "B T H"],
        ends: Float[Tensor, "B T H"],
        first: Int[Tensor, " B"],
        visible: Bool[Tensor, "B T"],
    ) -> Float[Tensor, "B T"]:
        """Return the logits of each end, given the start `first`."""
        chosen = starts[torch.arange(len(first), device=first.device), first].unsqueeze(1)
        logits: Tensor = self.end(F.gelu(chosen + ends)).squeeze(-1)
        return logits.float().masked_fill(~visible, NEVER)

    def _spans(
        self,
        starts: Float[Tensor, "B T H"],
        ends: Float[Tensor, "B T H"],
        logits: Float[Tensor, "B T"],
        visible: Bool[Tensor, "B T"],
    ) -> dict[str, Tensor]:
        # The most likely starts in the context, [B beam].
        places = torch.arange(logits.shape[1], device=logits.device)
        sep = places.masked_fill(~visible, 0).amax(1, keepdim=True)
        context = visible & (places > 0) & (places < sep)
        likely = logits.log_softmax(-1).masked_fill(~context, -torch.inf)
        likely = F.pad(likely, (0, max(0, self.beam - len(places))), value=-torch.inf)  # a row shorter than the beam
        of_first, first = likely.topk(self.beam)
        first = first.clamp(max=len(places) - 1)
        # The most likely end for each of them, in the spans that are not too long.
        best_ends = []
        for start in first.unbind(1):
            spans = context & (places >= start[:, None]) & (places < start[:, None] + self.longest)
            of_ends = self._ends(starts, ends, start, visible).log_softmax(-1).masked_fill(~spans, -torch.inf)
            best_ends.append(of_ends.max(1))
        of_last = torch.stack([best.values for best in best_ends], 1)
        last = torch.stack([best.indices for best in best_ends], 1)
        return {"score": (of_first + of_last).clamp(min=NO_SPAN), "first": first, "last": last}


def mean_spans(outputs: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the spans that several `Joint` heads tried, with the logarithms of their mean probabilities.

    A span that a model did not try has no probability there.
    """
    score = torch.cat([output["score"] for output in outputs], 1)  # [B S]
    first = torch.cat([output["first"] for output in outputs], 1)
    last = torch.cat([output["last"] for output in outputs], 1)
    same = (first.unsqueeze(2) == first.unsqueeze(1)) & (last.unsqueeze(2) == last.unsqueeze(1))  # [B S S]
    total = score.unsqueeze(1).masked_fill(~same, -torch.inf).logsumexp(2)
    return {"score": total - math.log(len(outputs)), "first": first, "last": last}


class NoAnswer(nn.Module):
    """The logit of no answer, from the state at [CLS] and the mean of the states at the likely starts."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dense = nn.Linear(2 * dim, HIDDEN)
        self.out = nn.Linear(HIDDEN, 1)

    def forward(self, states: Float[Tensor, "B T D"], start: Float[Tensor, "B T"]) -> Float[Tensor, " B"]:
        likely = (start.softmax(-1).unsqueeze(-1) * states).sum(1)
        logits: Tensor = self.out(F.gelu(self.dense(torch.cat([states[:, 0], likely], -1)))).squeeze(-1)
        return logits


@dataclass(frozen=True, slots=True)
class Read:
    """The part of an example that is in a row."""

    context: Encoded
    window: Window  # of the context
    begin: int  # the position of the window's first token in the row
    cut: bool  # the question was truncated


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of the context from `first` to `last`, as an answer."""

    score: float  # for comparison with other windows
    probability: float  # in its window
    first: int
    last: int


def joint_span(read: Read, output: Outputs) -> Span | None:
    """Return the best of the spans that `Joint` tried, of those that begin where the window is the best one."""
    to_context = read.window.first - read.begin
    first, last = output["first"].astype(int) + to_context, output["last"].astype(int) + to_context
    best = read.window.best
    score = np.where((first >= best.start) & (first < best.stop), output["score"], -np.inf)
    chosen = int(score.argmax())
    if score[chosen] <= NO_SPAN:
        return None
    return Span(float(score[chosen]), float(np.exp(score[chosen])), int(first[chosen]), int(last[chosen]))


def independent_span(read: Read, output: Outputs, longest: int) -> Span | None:
    """Return the best span of at most `longest` tokens, of those that begin where the window is the best one.

    All spans are tried, not only those with the best starts and ends.
    """
    window, best = read.window, read.window.best
    if not best:
        return None
    logits = np.stack([output["start"], output["end"]]).astype(np.float64)  # [2 T]
    start, end = logits[:, read.begin : read.begin + window.end - window.first]
    ends = sliding_window_view(np.append(end, np.full(longest - 1, -np.inf)), longest)
    inside = slice(best.start - window.first, best.stop - window.first)
    sums = start[inside, None] + ends[inside]
    first, tokens = divmod(int(sums.argmax()), longest)
    score = float(sums[first, tokens])
    of_all = float(np.logaddexp.reduce(logits, axis=1).sum())
    return Span(score, float(np.exp(score - of_all)), best.start + first, best.start + first + tokens)
