"""What the tasks with a text or a pair of texts share: rows, and a layer on the state of the first token."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from registry import Batch, Encoder, Metric, Row, TextExample

Head = Literal["linear", "dense"]
CUT, EMPTY = "cut_examples", "empty_examples"
CUT_METRIC = {
    CUT: Metric("share of the examples that were longer than a row, and cut", "cut examples", higher_is_better=False),
    EMPTY: Metric("share of the examples with a text that has no tokens", "empty examples", higher_is_better=False),
}


class FirstState(nn.Module):
    """The layers on the state of [CLS]: dropout and a linear one, as in google-research/electra.

    dense  dropout, a linear layer and GELU come before them, as in transformers' ElectraForSequenceClassification
    """

    def __init__(self, dim: int, outputs: int, dropout: float, *, dense: bool) -> None:
        super().__init__()
        self.dropout, self.out = nn.Dropout(dropout), nn.Linear(dim, outputs)
        self.dense = nn.Linear(dim, dim) if dense else None

    def forward(self, states: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B O"]:
        first = states[:, 0]
        if self.dense is not None:
            first = F.gelu(self.dense(self.dropout(first)))
        logits: Tensor = self.out(self.dropout(first))
        return logits


def text_rows(
    examples: Sequence[TextExample], encoder: Encoder, length: int, labels: Sequence[float | None]
) -> list[list[Row]]:
    """Return a row for each example: [CLS] text [SEP], or [CLS] text [SEP] pair [SEP] with segments 0 and 1.

    Examples that are too long lose tokens at the end, of pairs the longer text first. `keep` is True for these.
    """
    vocabulary = encoder.vocabulary
    texts = [each.ids for each in encoder.texts([example.text for example in examples])]
    pairs = iter([each.ids for each in encoder.texts([e.pair for e in examples if e.pair is not None])])
    found = []
    for example, first, label in zip(examples, texts, labels, strict=True):
        second = next(pairs) if example.pair is not None else None
        one, other = _fitting(first, second, length)
        tokens = [vocabulary.cls_id, *one, vocabulary.sep_id]
        segments = [0] * len(tokens)
        if other is not None:
            tokens += [*other, vocabulary.sep_id]
            segments += [1] * (len(other) + 1)
        cut = len(one) < len(first) or len(other or ()) < len(second or ())
        found.append([Row(tokens, segments, {} if label is None else {"label": label}, cut)])
    return found


def _fitting(first: list[int], second: list[int] | None, length: int) -> tuple[list[int], list[int] | None]:
    """Cut the ends, as if the longer text lost one token after the other; of equal ones the second."""
    if second is None:
        return first[: length - 2], None
    room = length - 3
    kept = min(len(second), max(room - len(first), room // 2))
    return first[: room - kept], second[:kept]


def cut_share(rows: Sequence[Sequence[Row]]) -> dict[str, float]:
    """Return the share of the examples that were cut, and of those with an empty text if there are any."""
    found = {CUT: sum(bool(row.keep) for (row,) in rows) / len(rows)}
    empty = sum(row.tokens[-1] in (row.tokens[1], row.tokens[-2]) for (row,) in rows)  # [SEP] after [CLS] or [SEP]
    return found | ({EMPTY: empty / len(rows)} if empty else {})


def shown(example: TextExample) -> Mapping[str, Any]:
    """Return what a prediction repeats of its example."""
    return {"id": example.id, "text": example.text} | ({} if example.pair is None else {"pair": example.pair})
