"""Token, position and segment embeddings with LayerNorm, as in google-research/electra's modeling.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

LAYER_NORM_EPS = 1e-12  # as in google-research/electra
SEGMENTS = 2


class Embeddings(nn.Module):
    """Int[B T] tokens and segments to Float[B T E].

    positions=False leaves the position table out, for backbones that know positions themselves.
    """

    def __init__(self, vocabulary_size: int, dim: int, max_length: int, *, positions: bool, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary_size, dim)
        self.positions = nn.Embedding(max_length, dim) if positions else None
        self.segments = nn.Embedding(SEGMENTS, dim)
        self.norm = nn.LayerNorm(dim, eps=LAYER_NORM_EPS)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Int[Tensor, "B T"], segments: Int[Tensor, "B T"]) -> Float[Tensor, "B T E"]:
        x = self.tokens(tokens) + self.segments(segments)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        normed: Tensor = self.dropout(self.norm(x))
        return normed

    @property
    def dim(self) -> int:
        return self.tokens.embedding_dim
