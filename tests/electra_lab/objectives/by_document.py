"""A backbone that attends within a document only, as a plug-in would define it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


class ByDocument(nn.Module):
    """Softmax attention over the visible positions of the same document; without documents, over the whole row."""

    length_multiple = 4
    positions = "lab"
    separates_documents = True

    def __init__(self, dim: int, depth: int, heads: int, max_length: int, /) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList(nn.Linear(dim, dim) for _ in range(3)) for _ in range(depth))
        self.given: list[Tensor | None] = []

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        attention_mask: Bool[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        self.given.append(documents)
        documents = torch.zeros_like(attention_mask, dtype=torch.long) if documents is None else documents
        seen = attention_mask[:, None, :] & (documents[:, :, None] == documents[:, None, :])
        seen = seen | ~seen.any(-1, keepdim=True)
        for query, key, value in self.layers:
            scores = query(x) @ key(x).transpose(1, 2) / x.shape[-1] ** 0.5
            visible = x.masked_fill(~attention_mask.unsqueeze(-1), 0.0)
            x = x + scores.masked_fill(~seen, float("-inf")).softmax(-1) @ value(visible)
        return x

    def at_step(self, seed: int, step: int) -> None: ...
