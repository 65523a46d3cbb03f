"""The layers that find an answer, as google-research/electra has them (finetune/qa/qa_tasks.py)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from registry import Batch

HIDDEN = 512
NEVER = -1e4  # the logit of positions that cannot be chosen


def choices(batch: Batch) -> Bool[Tensor, "B T"]:
    """Return the positions that may be chosen: [CLS], which stands for no answer, the context and its [SEP]."""
    visible = batch.attention_mask & (batch.segments == 1)
    visible[:, 0] = True
    return visible


class Independent(nn.Module):
    """Logits of an answer's start and end, each by itself; with `classifier` also of there being no answer."""

    def __init__(self, dim: int, dropout: float, *, classifier: bool) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.span = nn.Linear(dim, 2)
        self.no_answer = NoAnswer(dim) if classifier else None

    def forward(self, states: Float[Tensor, "B T D"], batch: Batch) -> dict[str, Tensor]:
        states, hidden = self.dropout(states), ~choices(batch)
        start, end = (each.float().masked_fill(hidden, NEVER) for each in self.span(states).unbind(-1))
        outputs = {"start": start, "end": end}
        return outputs if self.no_answer is None else outputs | {"no_answer": self.no_answer(states, start)}


class Joint(nn.Module):
    """Logits of an answer's start, and of its end given the start.

    In training the start is the right one; `end` are the logits given that. In evaluation the `beam` most likely
    starts in the context each get their most likely end at most `longest` tokens on: `first` and `last` are positions
    in the row, `score` their joint log-probability, minus infinity where there is no such span.
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
        # The pair's layer is linear, so its product with each state is computed once.
        of_start, of_end = self.pair.weight.chunk(2, dim=1)
        starts, ends = F.linear(states, of_start), F.linear(states, of_end, self.pair.bias)
        if "start" in batch.labels:
            outputs["end"] = self._ends(starts, ends, batch.labels["start"], visible)
        return outputs if self.training else outputs | self._spans(starts, ends, start, visible)

    def _ends(
        self,
        starts: Float[Tensor, "B T H"],
        ends: Float[Tensor, "B T H"],
        first: Int[Tensor, "B"],
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
        places = torch.arange(logits.shape[1], device=logits.device)
        last = places.masked_fill(~visible, 0).amax(1, keepdim=True)  # [SEP]
        context = visible & (places > 0) & (places < last)
        likely = logits.log_softmax(-1).masked_fill(~context, -torch.inf)
        likely = F.pad(likely, (0, max(0, self.beam - len(places))), value=-torch.inf)  # a row shorter than the beam
        of_first, first = likely.topk(self.beam)
        first = first.clamp(max=len(places) - 1)
        found = []
        for one in first.unbind(1):
            spans = context & (places >= one[:, None]) & (places < one[:, None] + self.longest)
            of_last = self._ends(starts, ends, one, visible).log_softmax(-1).masked_fill(~spans, -torch.inf)
            found.append(of_last.max(1))
        of_last = torch.stack([best.values for best in found], 1)
        return {"score": of_first + of_last, "first": first, "last": torch.stack([best.indices for best in found], 1)}


class NoAnswer(nn.Module):
    """The logit of a question without an answer, from the states at [CLS] and, on average, at the likely starts."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dense = nn.Linear(2 * dim, HIDDEN)
        self.out = nn.Linear(HIDDEN, 1)

    def forward(self, states: Float[Tensor, "B T D"], start: Float[Tensor, "B T"]) -> Float[Tensor, "B"]:
        likely = (start.softmax(-1).unsqueeze(-1) * states).sum(1)
        logits: Tensor = self.out(F.gelu(self.dense(torch.cat([states[:, 0], likely], -1)))).squeeze(-1)
        return logits
