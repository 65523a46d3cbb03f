"""Backbones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import nn


class Backbone(Protocol):
    """An encoder. Registered as a class derived from nn.Module:

        __init__(self, dim, depth, heads, max_length, /, *, <options>)

    layers               the modules of each depth
    length_multiple      the lab pads T up to a multiple of it
    positions            "lab": the lab adds learned positions; "own": the backbone handles positions itself
    bare_embeddings      optional: True if the lab passes vectors of the token table alone, and the backbone does the
                         rest: positions, segments, LayerNorm, dropout. `positions` is then "own", and the lab
                         sets the rate of the backbone's nn.Dropout `embedding_dropout`
    input_dim            optional: the width of the vectors that it takes, if it is not `dim`
    own_heads            optional: the heads that take the place of others, by the name of the other: their type and
                         options, such as {"tokens": {"type": "modernbert_tokens", "depth": 12}}
    separates_documents  optional: True if `forward` also takes `documents` Int[B T] and attends within a document only;
                         its own positions are relative, or restart at each document
    most_documents       optional: the lab sets it for each forward pass to an upper bound of the documents and pieces
                         of padding in all rows, or to None where it knows none; for backbones that pass it to
                         electra_lab.model.attention.visible_in and whose length_multiple is 1
    inner_states         optional: True if `forward` also takes `depths` and `apart`, and returns the states after each
                         of these layers; see `forward`
    before_export(length)  optional: prepares for a graph of ONNX that reads rows of up to that length
    flops(length)        optional: floating point operations of the matrix products of one forward pass over one row, 2
                         per multiply-add; without it the lab counts them with torch
    shared_flops(length) optional: those of a forward pass that are computed once for all rows, in addition to `flops`
    paper_flops(length)  optional: the same as the script of google-research/electra would count them

    `@backbones.register(name, initialized_by_lab=True)` asks the lab to draw the weights of nn.Linear and nn.Embedding;
    frozen and loaded ones stay. Otherwise all weights stay as the constructor leaves them. The same holds for
    generators, objectives and the heads of tasks. `cloze=True` says that the state of a position does not depend on the
    token there, in the input or in its vector; so says a generator that is not a backbone.
    """

    length_multiple: int
    positions: str

    @property
    def layers(self) -> Sequence[nn.Module] | nn.ModuleList: ...

    @property
    def forward(self) -> Any:
        """forward(x Float[B T D], attention_mask Bool[B T]) -> Float[B T D].

        attention_mask is True at real tokens. Values in the padding must not change real positions.

        With `inner_states` it also takes two keywords: `depths`, a sequence of numbers of layers, each from 1 to the
        depth of the backbone, and `apart`, a bool. With depths, it returns a tuple: for each depth, the states that a
        backbone of that depth would return. If `apart`, the layer above a depth passes no gradient to its states.
        """

    def at_step(self, seed: int, step: int) -> None:
        """Prepare for a step, the only place where a backbone may change over time.

        In eval mode the states of a row are a function of the weights and of this row, wherever the batch pads it to.
        """
