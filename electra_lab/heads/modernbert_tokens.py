"""ModernBERT's logits over the vocabulary."""

from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from electra_lab.model.transform import Transform
from registry import Vocabulary, heads
from registry.contracts.training import EmbeddingSizes


@heads.register("modernbert_tokens", exports_as="ForMaskedLM")
class ModernBertTokenHead(Transform):
    """Masked language modelling: dense, GELU, LayerNorm, a product with the token table, and a bias.

    As in ModernBertForMaskedLM of transformers. The backbone `modernbert` has it for `tokens`.

    depth  of the backbone, for the initial weights
    """

    reads_table = True

    def __init__(
        self,
        dim: int,
        sizes: EmbeddingSizes,
        vocabulary: Vocabulary | None,
        /,
        *,
        depth: Annotated[int, Field(ge=1, le=1000)] = 12,
    ) -> None:
        super().__init__(dim, sizes.dim, depth)
        self.bias = torch.nn.Parameter(torch.zeros(sizes.vocabulary_size))

    def forward(self, states: Float[Tensor, "*N D"], table: Float[Tensor, "V E"]) -> Float[Tensor, "*N V"]:
        return F.linear(self.transformed(states), table, self.bias)

    def flops(self, length: int, masked: int) -> int:
        """Logits are computed at masked positions alone."""
        embedding, dim = self.dense.weight.shape
        return 2 * masked * (dim * embedding + embedding * len(self.bias))
