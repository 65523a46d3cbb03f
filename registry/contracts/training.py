"""The parts of a training step: backbones, heads, networks, masking strategies, samplers, optimizers, metrics.

Letters in shapes: B rows of a batch, T positions, K masked slots per row, V vocabulary size, D width, N = B * K.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, overload

from registry.contracts.data import Random, Vocabulary

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float32, Float64, Int
    from torch import Tensor
    from torch.nn import Module
else:
    Module = object  # listing components must not import torch; see Backbone


SHARE, CORRELATION = (0.0, 1.0), (-1.0, 1.0)  # bounds


@dataclass(frozen=True)
class Metric:
    """A number that a component computes, declared under its name, for tables, charts and pages."""

    summary: str = ""  # a phrase that describes it
    title: str = ""  # the heading of its row or chart; "" stands for its name
    unit: str = ""  # such as "nats"
    higher_is_better: bool = True
    # False if each run is measured on a separate task, such as the replacements of its generator. A better number does
    # not mean a better model then, so reports call it only higher or lower.
    comparable: bool = True
    baselines: tuple[str, ...] = ()  # names of metrics to compare it with, which need no training
    # It is the mean of the metrics of these names, each against another reference. Reports show whether the order of
    # variants depends on the reference.
    parts: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None  # its least and greatest value, which intervals respect
    chart: bool = False  # shown as a curve over training
    brief: str = ""  # its name on the terminal during training; without one it is not shown there

    @property
    def direction(self) -> str:
        """The direction in words."""
        if not self.comparable:
            return "on each run's own task"
        return f"{'higher' if self.higher_is_better else 'lower'} is better"


# Heads that an objective asks for: their names, or the options of each by its name.
Heads: TypeAlias = Sequence[str] | Mapping[str, Mapping[str, Any]]


def options_by_name(heads: Heads) -> dict[str, Mapping[str, Any]]:
    """Return the options of each head, in the order of `heads`."""
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
        inputs  further inputs from the objective, such as the generator's logits
        """

    def flops(self, length: int, masked: int) -> int:
        """Return the FLOPs of the matrix products of one forward pass over one row, 2 per multiply-add.

        length  number of positions of the row
        masked  number of masked positions
        """


class Backbone(Module):
    """An encoder. Registered as a class derived from this one and from nn.Module:

        class Mine(Backbone, nn.Module):
            def __init__(self, dim, depth, heads, max_length, /, *, <options>)
            def forward(self, x, attention_mask)

    forward takes x Float[B T D] and attention_mask Bool[B T], True at real tokens, and returns Float[B T D]. Values in
    the padding must not change real positions. With `inner_states` it also takes two keywords: `depths`, numbers of
    layers, each from 1 to the depth of the backbone, and `detach`, a bool. With depths, it returns a tuple: for each
    depth, the states that a backbone of that depth would return. If `detach`, the layer above a depth passes them no
    gradient.

    `__init__` sets `layers`, the modules of each depth. All other members have defaults:

    length_multiple      number of which T is a multiple, as the lab pads rows
    positions            "lab": the lab adds learned positions; "own": the backbone handles positions itself
    bare_embeddings      True if the lab passes vectors of the token table alone, and the backbone does the rest:
                         positions, segments, LayerNorm, dropout. `positions` is then "own", and the lab sets the rate
                         of the backbone's nn.Dropout `embedding_dropout`
    input_dim            the width of the vectors that it takes, None for `dim`
    own_heads            heads that take the place of others, by the name of the other: their type and options, such
                         as {"tokens": {"type": "modernbert_tokens", "depth": 12}}
    separates_documents  True if `forward` also takes `documents` Int[B T] and attends within a document only; the
                         backbone's positions are relative, or restart at each document
    most_documents       upper bound of the documents and pieces of padding in all rows, which the lab sets for each
                         forward pass, to None without one, for electra_lab.model.layers.visible_in
    batch_mask           attention mask of the batch, set likewise: the bound holds for it without documents, too
    full_mask            the same if the batch has no padding: a backbone that receives this tensor needs no mask
    inner_states         True if `forward` also takes `depths` and `detach`, and returns the states after each of these
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
    batch_mask: Tensor | None = None
    full_mask: Tensor | None = None
    inner_states: bool = False
    reversible: bool = False
    discontinuous: bool = False

    layers: Any  # nn.ModuleList, or a sequence of modules

    def most_pieces(self, attention_mask: Tensor, documents: Tensor | None) -> int | None:
        """Return `most_documents` where it holds: for rows with documents, and for the rows of the batch."""
        return self.most_documents if documents is not None or attention_mask is self.batch_mask else None

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


class Generator(Protocol):
    """The part of a network that objectives use of a generator.

    One that is not a backbone, such as one that learns nothing or brings its weights, is registered as a class derived
    from nn.Module, __init__(self, vocabulary, /, *, <options>). `dim` is the width D of the states.

    token_log_probability(hidden, tokens)  optional: Float[B T] log-probabilities of a token at each position, over the
                                           tokens that are not special. Without it, the lab reads the logits in parts
    """

    dim: int

    def hidden(
        self,
        tokens: Int[Tensor, "B T"],
        attention_mask: Bool[Tensor, "B T"],
        segments: Int[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]: ...

    def token_logits(self, hidden: Float[Tensor, "B T D"], positions: Int[Tensor, "B K"]) -> Float[Tensor, "B K V"]: ...


class Network(Generator, Protocol):
    """A network as objectives and measures see it, with the heads that they need."""

    depth: int  # the number of layers
    inner_states: bool  # True if `hidden_at` works
    embeddings: Any  # embeddings.tokens.weight is the token table, Float[V E]

    def hidden(
        self,
        tokens: Int[Tensor, "B T"],
        attention_mask: Bool[Tensor, "B T"],
        segments: Int[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None = None,
        added: tuple[Int[Tensor, "B K"], Float[Tensor, "B K E"]] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Return the states of all positions; `added` are positions, and vectors added to those of their tokens."""

    def hidden_at(
        self,
        depths: Sequence[int],
        tokens: Int[Tensor, "B T"],
        attention_mask: Bool[Tensor, "B T"],
        segments: Int[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None = None,
        *,
        detach: bool = False,
    ) -> tuple[Float[Tensor, "B T D"], ...]:
        """Return the states after each of these layers, counted from 1, as a network that ended there would.

        detach  True if the layer above a depth reads its states without their gradient
        """

    def predict(
        self, head: str, hidden: Float[Tensor, "B T D"], *inputs: Any, positions: Int[Tensor, "B K"] | None = None
    ) -> Tensor:
        """Return the output of a head for all states, or for those at `positions` alone; `inputs` are the head's."""

    def replaced_logits(self, hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "B T"]: ...


@overload
def count(mask_prob: float, tokens: int) -> int: ...
@overload
def count(mask_prob: float | Float64[Tensor, ""], tokens: Int[Tensor, " B"]) -> Int[Tensor, " B"]: ...
def count(mask_prob: float | Tensor, tokens: int | Tensor) -> int | Tensor:
    """Return the number of masked tokens among maskable ones: ceil(mask_prob * tokens), with rounding errors forgiven.

    Computed in doubles: without the 1e-9, or in float32, ceil(0.15 * 100) would be 16.
    """
    if isinstance(tokens, int):
        return math.ceil(mask_prob * tokens - 1e-9)
    return (tokens.double() * mask_prob - 1e-9).ceil().long()


@dataclass(frozen=True)
class Masked:
    """The choice of a masking strategy."""

    inputs: Int[Tensor, "B T"]  # input of the generator
    positions: Int[Tensor, "B K"]  # positions of the predicted tokens, distinct within a row where valid
    valid: Bool[Tensor, "B K"]  # True for slots that count


class MaskingStrategy(Protocol):
    """Choose the tokens that the generator has to predict, and what it sees in their place.

    Registered as a function with at least the options mask_prob, replace_prob and random_prob. Every row has
    K = count(mask_prob, T) slots. A mask_prob that follows a schedule arrives as a Float64[""], so that compiled code
    is not compiled again; any number of slots up to T will do then, those that count first.
    """

    def __call__(
        self,
        tokens: Int[Tensor, "B T"],
        maskable: Bool[Tensor, "B T"],
        vocabulary: Vocabulary,
        rng: Random,
        /,
        *args: Any,
        **options: Any,
    ) -> Masked: ...


class Sampler(Protocol):
    """Draw one token per row. The lab casts logits to float32 and sets special ids to -inf before the call.

    Registered as a function. `@samplers.register(name, unbiased=...)` declares whether its draws follow softmax(logits)
    exactly: True, or a function of its options that says so. Without it the sampler counts as biased.
    """

    def __call__(
        self, logits: Float32[Tensor, "N V"], rng: Random, /, *args: Any, **options: Any
    ) -> Int[Tensor, " N"]: ...


class Optimizer(Protocol):
    """An optimizer. Registered as a class derived from torch.optim.Optimizer:

        __init__(self, parameters, learning_rate, /, *, <options>)

    `parameters` is a sequence of (name, parameter), shared parameters once. The lab may split groups by layer or
    network, keeping their options, and sets the learning rate of each group to its initial value times the factor of
    the schedule. All state is tensors, which are saved in checkpoints. The lab undoes non-finite steps, so state must
    exist from the start or begin at zero.

    `@optimizers.register(name, elementwise=True)` declares that the update of each number depends only on that number,
    its gradient and its state. Other optimizers cannot be used with train.parallel: fsdp.
    """

    @property
    def param_groups(self) -> list[dict[str, Any]]: ...

    def step(self) -> Any: ...

    def state_bytes(self, parameter: Tensor) -> int:
        """Return the number of bytes of state of one of its parameters."""


class Schedule(Protocol):
    """A number that changes during training, registered as a function of one of two kinds.

    schedule(progress, /, *, <options>)     any number; `progress` goes from 0 at the first step to 1 at the last
    schedule(step, steps, /, *, <options>)  a factor of train.learning_rate; `step` counts from 0. Raises ValueError if
                                            its options do not fit the number of steps
    """

    def __call__(self, *args: Any, **options: Any) -> float: ...
