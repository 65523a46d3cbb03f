"""DeBERTa's logits over the vocabulary."""

from torch import nn

from electra_lab.heads.tokens import TokenHead
from registry import Vocabulary, heads
from registry.contracts.training import EmbeddingSizes


@heads.register("deberta_tokens", initialized_by_lab=True, exports_as="ForMaskedLM")
class DebertaTokenHead(TokenHead):
    """The head `tokens` with the epsilon of DeBERTa, 1e-7. The backbone `deberta` has it for `tokens`."""

    def __init__(self, dim: int, sizes: EmbeddingSizes, vocabulary: Vocabulary | None, /) -> None:
        super().__init__(dim, sizes, vocabulary)
        self.norm = nn.LayerNorm(sizes.dim, eps=1e-7)
