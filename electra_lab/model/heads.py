"""The output heads of google-research/electra (pretrain/pretrain_helpers.py, run_pretraining.py)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.model.embeddings import LAYER_NORM_EPS


class TokenHead(nn.Module):
    """Masked language modelling: dense, GELU, LayerNorm, then a product with the token table, plus a bias.

    The table is passed in at each call: it belongs to the embeddings, and a shared table stays one parameter.
    """

    def __init__(self, dim: int, embedding_dim: int, vocabulary_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, embedding_dim)
        self.norm = nn.LayerNorm(embedding_dim, eps=LAYER_NORM_EPS)
        self.bias = nn.Parameter(torch.zeros(vocabulary_size))

    def forward(self, hidden: Float[Tensor, "*N D"], table: Float[Tensor, "V E"]) -> Float[Tensor, "*N V"]:
        return F.linear(self.norm(F.gelu(self.dense(hidden))), table, self.bias)


class ReplacedHead(nn.Module):
    """Replaced token detection: dense, GELU, one logit per position (positive = replaced)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, 1)

    def forward(self, hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "B T"]:
        logits: Tensor = self.out(F.gelu(self.dense(hidden))).squeeze(-1)
        return logits
