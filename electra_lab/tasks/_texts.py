"""Shared by the tasks for a text or a pair of texts: rows, and layers on the state of the first token."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.model.transform import Transform
from registry import Batch, Encoder, Metric, Row, TextExample
from registry.contracts.tasks import RowsOfExamples

Head = Literal["linear", "dense", "transformers"]
DENSE = ("dense", "out")  # the layers of most classes of transformers
CUT, EMPTY = "cut_examples", "empty_examples"
CUT_METRIC = {
    CUT: Metric("share of the examples that were longer than a row, and cut", "cut examples", higher_is_better=False),
    EMPTY: Metric("share of the examples with a text that has no tokens", "empty examples", higher_is_better=False),
}


class FirstState(nn.Module):
    """The layers on the state of [CLS]: dropout and a linear one, as in google-research/electra.

    layers  names of the layers; `dense` puts dropout, a linear layer and GELU before the last one, as in transformers'
            classes for ELECTRA and DeBERTa, `transform.dense` and `transform.norm` the layers of those for ModernBERT
    """

    def __init__(self, dim: int, outputs: int, dropout: float, layers: Collection[str]) -> None:
        super().__init__()
        self.dropout, self.out = nn.Dropout(dropout), nn.Linear(dim, outputs)
        self.dense = nn.Linear(dim, dim) if "dense" in layers else None
        self.transform = transform_of(dim, layers)
        self.activation: Callable[[Tensor], Tensor] = F.gelu
        self.mean = False  # pool the states of all tokens instead, as some fine-tuned ModernBERTs do

    def forward(self, states: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B O"]:
        pooled = states[:, 0]
        if self.mean:
            real = batch.attention_mask.unsqueeze(-1)
            pooled = (states * real).sum(1) / real.sum(1)
        if self.transform is not None:
            pooled = self.transform.transformed(pooled)
        if self.dense is not None:
            pooled = self.activation(self.dense(self.dropout(pooled)))
        logits: Tensor = self.out(self.dropout(pooled))
        return logits


def transform_of(dim: int, layers: Collection[str]) -> Transform | None:
    """Return the layers before the last one that transformers' classes for ModernBERT have, if they are wanted."""
    return Transform(dim, dim, 1) if "transform.dense" in layers else None


def chosen_layers(head: Head, of_class: Collection[str]) -> Collection[str]:
    """Return the names of the layers for the option `head`, given those of transformers' class."""
    return {"linear": ("out",), "dense": DENSE, "transformers": of_class}[head]


def text_rows(
    examples: Sequence[TextExample], encoder: Encoder, length: int, labels: Sequence[float | None]
) -> list[list[Row]]:
    """Return a row for each example: [CLS] text [SEP], or [CLS] text [SEP] pair [SEP] with segments 0 and 1.

    Examples that are too long lose tokens at the end, or where their owner cuts, of pairs the longer text first. `keep`
    is True for these.
    """
    vocabulary = encoder.vocabulary
    texts = encoder.texts([example.text for example in examples])
    pairs = iter(encoder.texts([example.pair for example in examples if example.pair is not None]))
    rows = []
    for example, text, label in zip(examples, texts, labels, strict=True):
        labelled = {} if label is None else {"label": label}
        if example.pair is None:
            ids = text.cut(length - 2)
            tokens = [vocabulary.cls_id, *ids, vocabulary.sep_id]
            rows.append([Row(tokens, [0] * len(tokens), labelled, len(ids) < len(text.ids))])
            continue
        # As if the longer text lost one token after the other; of equal ones the second.
        pair, room = next(pairs), length - 3
        size = min(len(pair.ids), max(room - len(text.ids), room // 2))
        first, second = text.cut(room - size), pair.cut(size)
        tokens = [vocabulary.cls_id, *first, vocabulary.sep_id, *second, vocabulary.sep_id]
        segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
        cut = len(first) < len(text.ids) or len(second) < len(pair.ids)
        rows.append([Row(tokens, segments, labelled, cut)])
    return rows


def cut_share(rows: RowsOfExamples) -> dict[str, float]:
    """Return the share of the examples that were cut, and of those with an empty text if there are any."""
    cut = sum(bool(row.keep) for (row,) in rows)
    empty = sum(row.tokens[-1] in (row.tokens[1], row.tokens[-2]) for (row,) in rows)  # [SEP] after [CLS] or [SEP]
    return {CUT: cut / len(rows)} | ({EMPTY: empty / len(rows)} if empty else {})


def shown(example: TextExample) -> Mapping[str, Any]:
    """Return the part of a prediction that describes its example."""
    return {"id": example.id, "text": example.text} | ({} if example.pair is None else {"pair": example.pair})
