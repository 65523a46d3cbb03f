"""Token, position and segment embeddings with LayerNorm, as in google-research/electra's modeling.py."""

from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from registry import Backbone

LAYER_NORM_EPS = 1e-12  # as in google-research/electra
SEGMENTS = 2


class Embeddings(nn.Module):
    """Turn tokens and segments Int[B T] into vectors Float[B T E].

    positions=False leaves out the position table, for backbones that handle positions themselves.
    bare=True returns the vectors of the token table alone, for backbones that do all the rest themselves.
    """

    def __init__(
        self, vocabulary_size: int, dim: int, max_length: int, *, positions: bool, dropout: float, bare: bool = False
    ) -> None:
        super().__init__()
        self.tokens: nn.Embedding | Shifted = nn.Embedding(vocabulary_size, dim)
        self.positions = nn.Embedding(max_length, dim) if positions else None
        self.bare = bare
        if bare:
            return
        self.segments = nn.Embedding(SEGMENTS, dim)
        self.norm = nn.LayerNorm(dim, eps=LAYER_NORM_EPS)
        self.dropout = nn.Dropout(dropout)

    @classmethod
    def of(cls, backbone: Backbone, vocabulary_size: int, dim: int, max_length: int, dropout: float) -> Self:
        """Return the embeddings that a backbone declares to need. One that takes bare vectors is told the dropout."""
        lab, bare = backbone.positions == "lab", backbone.bare_embeddings
        if bare:
            backbone.embedding_dropout.p = dropout  # type: ignore[union-attr]
        return cls(vocabulary_size, dim, max_length, positions=lab, dropout=dropout, bare=bare)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        segments: Int[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None = None,
        added: tuple[Int[Tensor, "B K"], Float[Tensor, "B K E"]] | None = None,
    ) -> Float[Tensor, "B T E"]:
        """
        documents  positions count from the beginning of each of them instead of the row's
        added      positions, and vectors that are added to those of their tokens
        """
        x: Tensor = self.tokens(tokens)
        if added is not None:
            positions, vectors = added
            x = x.scatter_add(1, positions.unsqueeze(-1).expand_as(vectors), vectors.to(x.dtype))
        if self.bare:
            return x
        x = x + self.segments(segments)
        if self.positions is not None:
            places = torch.arange(tokens.shape[1], device=tokens.device)
            x = x + self.positions(places if documents is None else within_documents(places, documents))
        normed: Tensor = self.dropout(self.norm(x))
        return normed

    @property
    def dim(self) -> int:
        return self.tokens.embedding_dim


def within_documents(places: Int[Tensor, " T"], documents: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Return each position's distance from the first position of its document in the row."""
    begins = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
    return places - places.masked_fill(~begins, 0).cummax(-1).values


class Shifted(nn.Module):
    """Another table plus a difference that starts at zero; gradients reach only the difference.

    Gradient-disentangled embedding sharing of DeBERTa-v3 (He et al. 2021, section 3.3). It takes the place of an
    nn.Embedding.
    """

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table
        self.num_embeddings, self.embedding_dim = table.num_embeddings, table.embedding_dim
        self.difference = nn.Embedding(table.num_embeddings, table.embedding_dim)
        nn.init.zeros_(self.difference.weight)

    def forward(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape E"]:
        vectors: Tensor = F.embedding(tokens, self.table.weight.detach()) + self.difference(tokens)
        return vectors

    @property
    def weight(self) -> Float[Tensor, "V E"]:
        """The sum of both tables, for an output layer that is tied to it."""
        return self.table.weight.detach() + self.difference.weight
