"""Exact softmax attention, by the kernel that is fastest here."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

Kernel = Literal["fused", "products"]


class Attention(nn.Module):
    """softmax(q k / sqrt(d)) v with dropout of the weights, exactly; without parameters.

    kernel  fused     torch's scaled_dot_product_attention, which never stores the weights of all pairs
            products  two batched matrix products around a softmax. On CPUs, its backward pass is faster for short rows
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernel: Kernel = "fused"

    def forward(
        self,
        query: Float[Tensor, "B H T d"],
        key: Float[Tensor, "B H S d"],
        value: Float[Tensor, "B H S d"],
        visible: Bool[Tensor, "B #H #T S"],
        dropout: float = 0.0,
    ) -> Float[Tensor, "B H T d"]:
        """Every row of `visible` needs a position."""
        if self.kernel == "fused":
            return F.scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=dropout)
        scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
        weights = scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(-1)
        return F.dropout(weights, dropout).to(value.dtype) @ value
