"""A backbone of your own: convolutions instead of attention."""

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


class _Layer(nn.Module):
    def __init__(self, dim: int, heads: int, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.into, self.out = nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.kernels, self.gate = nn.Parameter(torch.randn(heads, width)), nn.Linear(dim, dim)
        self.feed_norm, self.expand, self.contract = nn.LayerNorm(dim), nn.Linear(dim, inner), nn.Linear(inner, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "B T D"], real: Bool[Tensor, "B T 1"]) -> Float[Tensor, "B T D"]:
        x = x + self.dropout(self.out(self._mix(F.glu(self.into(self.norm(x))), real)))
        fed: Tensor = self.dropout(self.contract(F.gelu(self.expand(self.feed_norm(x)))))
        return x + fed

    def _mix(self, x: Float[Tensor, "B T D"], real: Bool[Tensor, "B T 1"]) -> Float[Tensor, "B T D"]:
        x = x.masked_fill(~real, 0)  # padding adds nothing to its neighbours or to the mean
        heads, width = self.kernels.shape
        kernels = self.kernels.softmax(-1).repeat_interleave(x.shape[-1] // heads, dim=0).unsqueeze(1)
        local = F.conv1d(x.transpose(1, 2), kernels, padding=width // 2, groups=x.shape[-1]).transpose(1, 2)
        mean = x.sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
        return local * self.gate(mean).sigmoid()


@backbones.register("light_conv", initialized_by_lab=True)
class LightConv(Backbone, nn.Module):
    """Lightweight convolutions (Wu et al. 2019) with a gate that sees the whole row.

    width  of the kernels in positions, an odd number. All columns of a head share one kernel, whose weights are
           positive and add up to one, like those of attention

    A convolution sees `width` positions, so each layer is also scaled by a gate on the average of the row (squeeze and
    excitation, Hu et al. 2018). The average is over real tokens, so that padding takes no part. The cost grows with the
    length, not with its square.
    """

    positions = "own"  # a convolution knows what is to its left and right

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        max_length: int,
        /,
        *,
        width: Annotated[int, Field(ge=3)] = 7,
        ff_mult: Annotated[int, Field(ge=1)] = 4,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1,
    ) -> None:
        super().__init__()
        if width % 2 == 0:
            raise ValueError(f"width {width} is even; a kernel needs a middle.")
        self.dim, self.width, self.inner = dim, width, dim * ff_mult
        self.layers = nn.ModuleList(_Layer(dim, heads, width, self.inner, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Float[Tensor, "B T D"], attention_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        real = attention_mask.unsqueeze(-1)
        for layer in self.layers:
            x = layer(x, real)
        states: Tensor = self.norm(x)
        return states

    def flops(self, length: int) -> int:
        """Per layer: projections 6 T D^2, convolution 2 T D W, the gate 2 D^2 per row, feed-forward 4 T D F."""
        row = 6 * self.dim**2 + 2 * self.dim * self.width + 4 * self.dim * self.inner
        return len(self.layers) * (length * row + 2 * self.dim**2)
