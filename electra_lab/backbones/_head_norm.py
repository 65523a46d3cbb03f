"""QK norm."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class HeadNorm(nn.Module):
    """RMSNorm of the queries or keys of each head. Its scales are one vector, which optimizers do not decay."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads, self.weight = heads, nn.Parameter(torch.ones(heads * width))

    def forward(self, x: Float[Tensor, "B H T d"]) -> Float[Tensor, "B H T d"]:
        normed = F.rms_norm(x, x.shape[-1:], eps=1e-6)
        return (normed * self.weight.view(self.heads, 1, -1)).to(x.dtype)
