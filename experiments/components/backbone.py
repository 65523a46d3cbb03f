"""A backbone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from registry import Backbone, backbones

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class Layer(nn.Module):
    """Two linear layers on each state and the mean of all."""

    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.norm, self.expand, self.contract = nn.LayerNorm(dim), nn.Linear(2 * dim, inner), nn.Linear(inner, dim)

    def forward(self, x: Float[Tensor, "B T D"], real: Bool[Tensor, "B T 1"]) -> Float[Tensor, "B T D"]:
        states = self.norm(x).masked_fill(~real, 0.0)  # padding takes no part in the mean
        mean = states.sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
        both = torch.cat([states, mean.expand_as(states)], dim=-1)  # [B T 2D]
        change: Tensor = self.contract(F.gelu(self.expand(both)))
        return x + change


@backbones.register("my_backbone", initialized_by_lab=True)
class MyBackbone(Backbone, nn.Module):
    """Layers that see the mean of the row as its context.

    inner  width of a layer, as a multiple of `dim`
    """

    def __init__(
        self, dim: int, depth: int, heads: int, max_length: int, /, *, inner: Annotated[int, Field(ge=1, le=64)] = 2
    ) -> None:
        super().__init__()
        self.dim, self.inner = dim, inner * dim
        self.layers = nn.ModuleList(Layer(dim, self.inner) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Float[Tensor, "B T D"], attention_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        for layer in self.layers:
            x = layer(x, attention_mask.unsqueeze(-1))
        states: Tensor = self.norm(x)
        return states

    def flops(self, length: int) -> int:
        """Return the operations of the matrix products for a row, forward."""
        return len(self.layers) * 2 * length * self.inner * 3 * self.dim
