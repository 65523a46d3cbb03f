"""A head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from registry import EmbeddingSizes, Vocabulary, heads

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


@heads.register("my_head", initialized_by_lab=True)
class MyHead(nn.Module):
    """One number for each position. An objective names it in its `needs`, and calls `predict("my_head", states)`."""

    def __init__(self, dim: int, sizes: EmbeddingSizes, vocabulary: Vocabulary | None, /) -> None:
        super().__init__()
        self.out = nn.Linear(dim, 1)

    def forward(self, states: Float[Tensor, "*N D"]) -> Float[Tensor, "*N"]:
        numbers: Tensor = self.out(states).squeeze(-1)
        return numbers

    def flops(self, length: int, masked: int) -> int:
        """Return the operations of the matrix products for a row, forward."""
        return 2 * length * self.out.in_features
