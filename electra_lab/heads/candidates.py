"""Logits of a few candidates at each position."""

from typing import Annotated

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.heads.tokens import TokenHead
from registry import Vocabulary, heads
from registry.contracts.training import EmbeddingSizes


@heads.register("candidates", initialized_by_lab=True)
class CandidateHead(TokenHead):
    """Choose among candidates: dense, GELU, LayerNorm, a product with the vectors of k tokens of the table.

    As in MC-BERT (Xu et al. 2020, github.com/MC-BERT/MC-BERT) and TEAMS (Shen et al. 2021, tensorflow/models). Only the
    rows of the candidates are read, and gradients reach them.

    k           candidates at each position, for the FLOPs
    everywhere  they are chosen from at all positions, not at the masked ones alone; for the FLOPs
    bias        add a bias for each token of the vocabulary
    reject      have one more logit, which comes first: that of "none of them"
    """

    def __init__(
        self,
        dim: int,
        sizes: EmbeddingSizes,
        vocabulary: Vocabulary | None,
        /,
        *,
        k: Annotated[int, Field(ge=1, le=65_536)] = 4,
        everywhere: bool = False,
        bias: bool = True,
        reject: bool = False,
    ) -> None:
        super().__init__(dim, sizes, vocabulary)
        if vocabulary is not None and k > len(vocabulary.ordinary_ids):
            limit = f"the vocabulary has {len(vocabulary.ordinary_ids)} ordinary tokens"
            raise ValueError(f"k asks for {k} candidates, but {limit}.")
        self.k, self.everywhere = k, everywhere
        if not bias:
            self.register_parameter("bias", None)
        self.reject = nn.Linear(sizes.dim, 1) if reject else None

    def forward(  # type: ignore[override]  # it takes the candidates, too
        self, states: Float[Tensor, "*N D"], candidates: Int[Tensor, "*N k"], table: Float[Tensor, "V E"]
    ) -> Float[Tensor, "*N c"]:
        """Return the logit of each candidate; c is k, or k + 1 with `reject`."""
        x = self.transformed(states)
        vectors = F.embedding(candidates, table)  # [*N k E]
        logits = (vectors @ x.unsqueeze(-1)).squeeze(-1)
        if self.bias is not None:
            logits = logits + self.bias[candidates]
        if self.reject is not None:
            logits = torch.cat([self.reject(x), logits], dim=-1)
        return logits

    def flops(self, length: int, masked: int) -> int:
        dim, embedding = self.dense.in_features, self.dense.out_features
        choices = self.k + (self.reject is not None)
        return 2 * (length if self.everywhere else masked) * (dim * embedding + embedding * choices)

    def paper_flops(self, length: int, masked: int) -> float:
        """The script knows no candidates."""
        return self.flops(length, masked)
