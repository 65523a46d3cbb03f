"""Backbones."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch.nn import Module
else:
    Module = object  # listing components must not import torch; see Backbone


class Backbone(Module):
    """An encoder. Registered as a class derived from this one and from nn.Module:

        class Mine(Backbone, nn.Module):
            def __init__(self, dim, depth, heads, max_length, /, *, <options>)
            def forward(self, x, attention_mask)

    forward takes x Float[B T D] and attention_mask Bool[B T], True at real tokens, and returns Float[B T D]. Values in
    the padding must not change real positions. With `inner_states` it also takes two keywords: `depths`, numbers of
    layers, each from 1 to the depth of the backbone, and `apart`, a bool. With depths, it returns a tuple: for each
    depth, the states that a backbone of that depth would return. If `apart`, the layer above a depth passes no gradient
    to its states.

    `__init__` sets `layers`, the modules of each depth. All other members have defaults:

    length_multiple      the lab pads T up to a multiple of it
    positions            "lab": the lab adds learned positions; "own": the backbone handles positions itself
    bare_embeddings      True if the lab passes vectors of the token table alone, and the backbone does the rest:
                         positions, segments, LayerNorm, dropout. `positions` is then "own", and the lab sets the rate
                         of the backbone's nn.Dropout `embedding_dropout`
    input_dim            the width of the vectors that it takes, None for `dim`
    own_heads            the heads that take the place of others, by the name of the other: their type and options, such
                         as {"tokens": {"type": "modernbert_tokens", "depth": 12}}
    separates_documents  True if `forward` also takes `documents` Int[B T] and attends within a document only; its
                         own positions are relative, or restart at each document
    most_documents       the lab sets it for each forward pass to an upper bound of the documents and pieces of padding
                         in all rows, or to None where it knows none, for electra_lab.model.attention.visible_in
    inner_states         True if `forward` also takes `depths` and `apart`, and returns the states after each of these
                         layers; see `forward`
    reversible           True if it keeps no activations and computes them again in the backward pass
    discontinuous        True if rounding may move a state to another bucket, so that two kernels may disagree

    `@backbones.register(name, initialized_by_lab=True)` asks the lab to draw the weights of nn.Linear and nn.Embedding;
    frozen and loaded ones stay. Otherwise all weights stay as the constructor leaves them. The same holds for
    generators, objectives and the heads of tasks. `cloze=True` says that the state of a position does not depend on the
    token there, in the input or in its vector; so says a generator that is not a backbone.
    """

    length_multiple: int = 1
    positions: Literal["lab", "own"] = "lab"
    bare_embeddings: bool = False
    input_dim: int | None = None
    own_heads: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    separates_documents: bool = False
    most_documents: int | None = None
    inner_states: bool = False
    reversible: bool = False
    discontinuous: bool = False

    layers: Any  # nn.ModuleList, or a sequence of modules

    def at_step(self, seed: int, step: int) -> None:
        """Prepare for a step, the only place where a backbone may change over time.

        In eval mode the states of a row are a function of the weights and of this row, wherever the batch pads it to.
        """

    def flops(self, length: int) -> int | None:
        """Return the FLOPs of the matrix products of one forward pass over one row, 2 per multiply-add.

        None, the default, asks the lab to count them with torch.
        """
        return None

    def shared_flops(self, length: int) -> int:
        """Return the FLOPs of a forward pass that are computed once for all rows, in addition to `flops`."""
        return 0

    def paper_flops(self, length: int) -> float | None:
        """Return the FLOPs as the script of google-research/electra would count them; None if it does not know how."""
        return None

    def before_export(self, length: int) -> None:
        """Prepare for a graph of ONNX that reads rows of up to `length`."""
