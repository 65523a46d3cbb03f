"""A backbone that attends within a document only, as a plug-in would define it."""

from __future__ import annotations

from collections.abc import Sequence
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
    inner_states = True

    def __init__(self, dim: int, depth: int, heads: int, max_length: int, /) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList(nn.Linear(dim, dim) for _ in range(3)) for _ in range(depth))
        self.given: list[Tensor | None] = []

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        attention_mask: Bool[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None = None,
        *,
        depths: Sequence[int] = (),
        apart: bool = False,
    ) -> Float[Tensor, "B T D"] | tuple[Float[Tensor, "B T D"], ...]:
        self.given.append(documents)
        documents = torch.zeros_like(attention_mask, dtype=torch.long) if documents is None else documents
        seen = attention_mask[:, None, :] & (documents[:, :, None] == documents[:, None, :])
        seen = seen | ~seen.any(-1, keepdim=True)
        after = [x]
        for depth, (query, key, value) in enumerate(self.layers, 1):
            scores = query(x) @ key(x).transpose(1, 2) / x.shape[-1] ** 0.5
            visible = x.masked_fill(~attention_mask.unsqueeze(-1), 0.0)
            x = x + scores.masked_fill(~seen, float("-inf")).softmax(-1) @ value(visible)
            after.append(x)
            x = x.detach() if apart and depth in depths else x
        return tuple(after[depth] for depth in depths) or after[-1]

    def at_step(self, seed: int, step: int) -> None: ...
