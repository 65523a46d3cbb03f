"""Networks and generators as objectives and measures see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


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
    """A network as objectives and measures see it. It has the heads that they asked for."""

    depth: int  # the number of layers
    inner_states: bool  # whether `hidden_at` works
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
        apart: bool = False,
    ) -> tuple[Float[Tensor, "B T D"], ...]:
        """Return the states after each of these layers, counted from 1, as a network that ended there would.

        apart  the layer above a depth reads its states without their gradient
        """

    def predict(
        self, head: str, hidden: Float[Tensor, "B T D"], *inputs: Any, positions: Int[Tensor, "B K"] | None = None
    ) -> Tensor:
        """Return the output of a head for all states, or for those at `positions` alone; `inputs` are the head's."""

    def replaced_logits(self, hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "B T"]: ...
