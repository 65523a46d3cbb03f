"""A network of the lab: embeddings, a projection where widths differ, a backbone, heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.model.embeddings import Embeddings
from electra_lab.model.heads import ReplacedHead, TokenHead
from registry.core import place
from registry.errors import BadResult

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class Network(nn.Module):
    """What an objective sees (registry.contracts.Network), for any backbone of width `dim`.

    A head that the objective does not use is not built: its parameters would never get a gradient.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        backbone: nn.Module,
        dim: int,
        *,
        pad_id: int,
        token_head: TokenHead | None = None,
        replaced_head: ReplacedHead | None = None,
    ) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.project = nn.Linear(embeddings.dim, dim) if embeddings.dim != dim else None
        self.backbone = backbone
        self.length_multiple: int = backbone.length_multiple  # type: ignore[assignment]  # by contract
        self.token_head = token_head
        self.replaced_head = replaced_head
        self.dim, self.pad_id = dim, pad_id

    def hidden(
        self, tokens: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"], segments: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T D"]:
        """States of every position. T is padded up to the backbone's length_multiple and cut again.

        Padding is read as the pad token whatever it holds, so its content cannot matter to any backbone.
        """
        length = tokens.shape[1]
        extra = -length % self.length_multiple
        tokens = F.pad(tokens.masked_fill(~mask, self.pad_id), (0, extra), value=self.pad_id)
        mask = F.pad(mask, (0, extra), value=False)
        x = self.embeddings(tokens, F.pad(segments, (0, extra)))
        if self.project is not None:
            x = self.project(x)
        states: Tensor = self.backbone(x, mask)
        self._refuse_unlike(states, x)
        return states[:, :length]

    def _refuse_unlike(self, states: object, x: Float[Tensor, "B T D"]) -> None:
        """States have the shape and type of the input; under autocast any floating point type. Raises BadResult."""
        name = type(self.backbone).__name__
        if not isinstance(states, Tensor):
            returned = f"a {type(states).__name__}"
        elif states.shape != x.shape:
            returned = f"the shape {list(states.shape)}"
        elif states.dtype != x.dtype and not (states.is_floating_point() and torch.is_autocast_enabled(x.device.type)):
            returned = f"the type {states.dtype}"
        elif x.requires_grad and torch.is_grad_enabled() and not states.requires_grad:
            returned = "a tensor that no gradient passes"
        else:
            return
        raise BadResult(
            f"{place(type(self.backbone))}: {name}.forward returned {returned}; it must return a tensor like its "
            f"input, {list(x.shape)} of {x.dtype}."
        )

    def token_logits(self, hidden: Float[Tensor, "B T D"], positions: Int[Tensor, "B K"]) -> Float[Tensor, "B K V"]:
        """Vocabulary logits at `positions` alone: they are most of the memory and much of the time."""
        assert self.token_head is not None, "this network was built without a token head"
        chosen = hidden.gather(1, positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        logits: Tensor = self.token_head(chosen, self.embeddings.tokens.weight)
        return logits

    def replaced_logits(self, hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "B T"]:
        assert self.replaced_head is not None, "this network was built without a replaced-token head"
        logits: Tensor = self.replaced_head(hidden)
        return logits
