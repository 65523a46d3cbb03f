"""The layers that all heads of ModernBERT begin with, in pre-training and in tasks."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.model.network import truncated_normal_

EPS = 1e-5


class Transform(nn.Module):
    """Dense without a bias, GELU, LayerNorm without a bias; initial weights of deviation 0.02 / sqrt(2 depth)."""

    def __init__(self, dim: int, width: int, depth: int) -> None:
        super().__init__()
        self.dense, self.norm = nn.Linear(dim, width, bias=False), nn.LayerNorm(width, eps=EPS, bias=False)
        with torch.no_grad():
            truncated_normal_(self.dense.weight, scale=(2 * depth) ** -0.5)

    def transformed(self, states: Float[Tensor, "*N D"]) -> Float[Tensor, "*N E"]:
        normed: Tensor = self.norm(F.gelu(self.dense(states)))
        return normed
