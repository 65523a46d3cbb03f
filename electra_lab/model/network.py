"""A network: embeddings, a projection if widths differ, a backbone, heads."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.model.embeddings import Embeddings
from registry.core import place
from registry.errors import BadResult


def everywhere(hidden: Float[Tensor, "B T D"]) -> Int[Tensor, "B T"]:
    """Return the positions of all states, for `token_logits` of every one of them."""
    return torch.arange(hidden.shape[1], device=hidden.device).expand(hidden.shape[:2])


class Network(nn.Module):
    """A registry.contracts.Network around any backbone of width `dim`.

    heads  by name; a head that nothing uses is left out, as its parameters would never get a gradient
    """

    def __init__(
        self,
        embeddings: Embeddings,
        backbone: nn.Module,
        dim: int,
        *,
        pad_id: int,
        heads: Mapping[str, nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.embeddings = embeddings
        width = int(getattr(backbone, "input_dim", dim))
        self.project = nn.Linear(embeddings.dim, width) if embeddings.dim != width else None
        self.backbone = backbone
        self.length_multiple: int = backbone.length_multiple  # type: ignore[assignment]  # by contract
        self.separates_documents = bool(getattr(backbone, "separates_documents", False))
        self.depth = len(getattr(backbone, "layers", ()))
        self.inner_states = bool(getattr(backbone, "inner_states", False))
        self.heads = nn.ModuleDict(heads)
        self.dim, self.pad_id = dim, pad_id

    def longest(self, rows: int) -> int:
        """Return the longest input for a table of `rows` positions, as `hidden` pads every input."""
        return rows // self.length_multiple * self.length_multiple

    def hidden(
        self,
        tokens: Int[Tensor, "B T"],
        attention_mask: Bool[Tensor, "B T"],
        segments: Int[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None = None,
        added: tuple[Int[Tensor, "B K"], Float[Tensor, "B K E"]] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Return the state of every position. T is padded up to the backbone's length_multiple, and states are cut.

        Whatever the padding holds is read as the pad token, so it cannot matter to any backbone. With `documents`,
        positions restart at each document; raises BadResult if the backbone cannot separate them.

        added  positions, and vectors that are added to those of their tokens, such as a perturbation
        """
        return self._read(tokens, attention_mask, segments, documents, added)[0]

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
        """Return the states after each of these layers, counted from 1, as `hidden` of a network that ended there.

        The last LayerNorm of a pre-norm backbone is applied to all of them.

        apart  the layer above a depth reads its states without their gradient

        Raises BadResult if the backbone cannot return them, as reversible ones, or has no such layer.
        """
        if not self.inner_states:
            name = type(self.backbone).__name__
            raise BadResult(f"{place(type(self.backbone))}: {name} cannot return the states of inner layers.")
        if not depths or not all(1 <= depth <= self.depth for depth in depths):
            raise BadResult(f"there are no states at the depths {[*depths]}: the network has {self.depth} layers.")
        return self._read(tokens, attention_mask, segments, documents, depths=tuple(depths), apart=apart)

    def _read(
        self,
        tokens: Int[Tensor, "B T"],
        attention_mask: Bool[Tensor, "B T"],
        segments: Int[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None,
        added: tuple[Int[Tensor, "B K"], Float[Tensor, "B K E"]] | None = None,
        **options: Any,
    ) -> tuple[Float[Tensor, "B T D"], ...]:
        """Return the backbone's states, or all that it returns with these options."""
        length = tokens.shape[1]
        extra = -length % self.length_multiple
        tokens = F.pad(tokens.masked_fill(~attention_mask, self.pad_id), (0, extra), value=self.pad_id)
        attention_mask = F.pad(attention_mask, (0, extra), value=False)
        if documents is not None:
            if not self.separates_documents:
                raise BadResult(
                    f"{place(type(self.backbone))}: {type(self.backbone).__name__} cannot separate documents."
                )
            documents = F.pad(documents, (0, extra), value=-1)
        x = self.embeddings(tokens, F.pad(segments, (0, extra)), documents, added)
        if self.project is not None:
            x = self.project(x)
        inputs = (x, attention_mask) if documents is None else (x, attention_mask, documents)
        returned = self.backbone(*inputs, **options)
        found: tuple[Tensor, ...] = returned if isinstance(returned, tuple) and options else (returned,)
        for states in found:
            self._refuse_unlike(states, x)
        return tuple(states[:, :length] for states in found)

    @property
    def glorot_layers(self) -> Sequence[nn.Module]:
        """The official code names no initializer for the projection."""
        return [] if self.project is None else [self.project]

    def predict(
        self, head: str, hidden: Float[Tensor, "B T D"], *inputs: Any, positions: Int[Tensor, "B K"] | None = None
    ) -> Tensor:
        """Return the output of a head for all states, or for those at `positions` alone.

        inputs  arguments of the head's forward after the states

        Raises BadResult if the network has no such head, or if it does not return a tensor with a row for each one.
        """
        if head not in self.heads:
            raise BadResult(
                f"the network has no head '{head}'. An objective asks for it by needs = Needs(heads=('{head}',))."
            )
        if positions is not None:  # [B T D] -> [B K D]
            hidden = hidden.gather(1, positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        module = self.heads[head]
        table = {"table": self.embeddings.tokens.weight} if getattr(module, "reads_table", False) else {}
        predicted: Tensor = module(hidden, *inputs, **table)
        rows = tuple(hidden.shape[:-1])
        whole = {"tokens": (*rows, self.embeddings.tokens.num_embeddings), "replaced": rows}.get(head)
        shape = tuple(predicted.shape) if isinstance(predicted, Tensor) else ()
        if shape != whole if whole else shape[:1] != rows[:1]:
            returned = f"the shape {[*shape]}" if shape else f"a {type(predicted).__name__}"
            must = f"a tensor of shape {[*whole]}" if whole else f"a tensor with {rows[0]} rows"
            raise BadResult(f"{place(type(module))}: head '{head}' returned {returned}, must be {must}.")
        return predicted

    def _refuse_unlike(self, states: object, x: Float[Tensor, "B T D"]) -> None:
        """Raise BadResult unless states have the shape and type of the input; under autocast any floating type."""
        name = type(self.backbone).__name__
        if not isinstance(states, Tensor):
            returned = f"a {type(states).__name__}"
        elif states.shape != (*x.shape[:2], self.dim):
            returned = f"the shape {list(states.shape)}"
        elif states.dtype != x.dtype and not (states.is_floating_point() and torch.is_autocast_enabled(x.device.type)):
            returned = f"the type {states.dtype}"
        elif x.requires_grad and torch.is_grad_enabled() and not states.requires_grad:
            returned = "a tensor without a gradient"
        else:
            return
        raise BadResult(
            f"{place(type(self.backbone))}: {name}.forward returned {returned}; it must return a tensor like its "
            f"input, {list(x.shape)} of {x.dtype}."
        )

    def token_logits(self, hidden: Float[Tensor, "B T D"], positions: Int[Tensor, "B K"]) -> Float[Tensor, "B K V"]:
        """Return vocabulary logits at `positions` alone: they take most of the memory and much of the time."""
        return self.predict("tokens", hidden, positions=positions)

    def replaced_logits(self, hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "B T"]:
        """Return the logits of "replaced" at every position."""
        return self.predict("replaced", hidden)
