"""Logits over the vocabulary."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.model.flops import GELU, NORM, OUTPUTS, SOFTMAX
from electra_lab.model.network import LAYER_NORM_EPS
from registry import Vocabulary, heads
from registry.contracts.training import EmbeddingSizes


@heads.register("tokens", initialized_by_lab=True, exports_as="ForMaskedLM")
class TokenHead(nn.Module):
    """Masked language modelling: dense, GELU, LayerNorm, a product with the token table, and a bias.

    As in google-research/electra (pretrain/pretrain_helpers.py). It returns a logit for each token of the vocabulary.
    The table is passed in at each call: it belongs to the embeddings, and a shared table stays one parameter.
    """

    reads_table = True

    def __init__(self, dim: int, sizes: EmbeddingSizes, vocabulary: Vocabulary | None, /) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, sizes.dim)
        self.norm = nn.LayerNorm(sizes.dim, eps=LAYER_NORM_EPS)
        self.bias = nn.Parameter(torch.zeros(sizes.vocabulary_size))

    def forward(self, states: Float[Tensor, "*N D"], table: Float[Tensor, "V E"]) -> Float[Tensor, "*N V"]:
        return F.linear(self.transformed(states), table, self.bias)

    def transformed(self, states: Float[Tensor, "*N D"]) -> Float[Tensor, "*N E"]:
        """Return the states as vectors to compare with those of the token table."""
        normed: Tensor = self.norm(F.gelu(self.dense(states)))
        return normed

    def flops(self, length: int, masked: int) -> int:
        """Logits are computed at masked positions alone."""
        dim, embedding = self.dense.in_features, self.dense.out_features
        return 2 * masked * (dim * embedding + embedding * len(self.bias))

    def paper_flops(self, length: int, masked: int) -> float:
        dim, embedding = self.dense.in_features, self.dense.out_features
        share = 1.0 if masked == length else OUTPUTS
        dense = 2 * dim * embedding + (1 + GELU + NORM) * embedding
        return share * length * (dense + (2 * embedding + SOFTMAX + 2) * len(self.bias))
