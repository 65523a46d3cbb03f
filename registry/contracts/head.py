"""Heads: layers on top of a network's states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

# Heads that an objective asks for: their names, or the options of each by its name.
Heads: TypeAlias = Sequence[str] | Mapping[str, Mapping[str, Any]]


def options_by_name(heads: Heads) -> dict[str, Mapping[str, Any]]:
    """Return the options of each head, in the order in which they were asked for."""
    if isinstance(heads, Mapping):
        return dict(heads)
    return {name: {} for name in ([heads] if isinstance(heads, str) else heads)}


@dataclass(frozen=True)
class EmbeddingSizes:
    """The sizes of a network's embeddings."""

    vocabulary_size: int
    dim: int
    max_length: int
    dropout: float


class Head(Protocol):
    """Layers that turn states into predictions. Registered as a class derived from nn.Module:

        __init__(self, dim, sizes, vocabulary, /, *, <options>)

    `dim` is the width D of the states, `sizes` an EmbeddingSizes, `vocabulary` a Vocabulary; it is None when an export
    is opened, where only heads that declare `exports_as` are built. An objective asks for heads by name (`Needs`), and
    reads one by `network.predict(name, hidden, ...)`.

    reads_table                  optional: True if `forward` also takes `table` Float[V E], the network's token table
    glorot_layers                optional: the layers that Glorot's uniform distribution initializes, as in
                                 google-research/electra; see init.distribution
    paper_flops(length, masked)  optional: FLOPs as the script of google-research/electra would count them

    `@heads.register(name, initialized_by_lab=True)` asks the lab to draw the weights of nn.Linear and nn.Embedding, as
    for backbones. `exports_as` is for built-in heads: the ending of transformers' class that has the same layers, such
    as `ForMaskedLM`; `Model` if there is none, but the file of the encoder shall have the head under our names. Other
    heads are in checkpoints, and left out of exports.
    """

    @property
    def forward(self) -> Any:
        """forward(states, *inputs) -> Tensor.

        states  Float[B T D] of all positions, or Float[B K D] of those that the objective has chosen
        inputs  whatever the objective passes on, such as the generator's logits
        """

    def flops(self, length: int, masked: int) -> int:
        """Return the FLOPs of the matrix products of one forward pass over one row, 2 per multiply-add.

        length  positions of the row
        masked  those that are masked
        """
