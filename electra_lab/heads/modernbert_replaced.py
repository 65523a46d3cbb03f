"""Replaced token detection by the head that ModernBERT has for classes of tokens."""

from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from electra_lab.model.network import STANDARD_DEVIATION, truncated_normal_
from electra_lab.model.transform import Transform
from registry import Vocabulary, heads
from registry.contracts.training import EmbeddingSizes


@heads.register("modernbert_replaced", exports_as="ForTokenClassification")
class ModernBertReplacedHead(Transform):
    """Replaced token detection: dense, GELU, LayerNorm, one logit per position (positive = replaced).

    As in ModernBertForTokenClassification of transformers, whose two logits are 0 and this one. The backbone
    `modernbert` has it for `replaced`.

    depth  of the backbone, for the initial weights
    """

    def __init__(
        self,
        dim: int,
        sizes: EmbeddingSizes,
        vocabulary: Vocabulary | None,
        /,
        *,
        depth: Annotated[int, Field(ge=1, le=1000)] = 12,
    ) -> None:
        super().__init__(dim, dim, depth)
        self.out = nn.Linear(dim, 1)
        with torch.no_grad():  # of deviation 1 / sqrt(D)
            truncated_normal_(self.out.weight, scale=dim**-0.5 / STANDARD_DEVIATION)
            self.out.bias.zero_()

    def forward(self, states: Float[Tensor, "*N D"]) -> Float[Tensor, "*N"]:
        logits: Tensor = self.out(self.transformed(states)).squeeze(-1)
        return logits

    def flops(self, length: int, masked: int) -> int:
        dim = self.dense.in_features
        return 2 * length * (dim * dim + dim)
