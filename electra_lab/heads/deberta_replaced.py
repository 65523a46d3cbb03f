"""Replaced token detection of DeBERTa-v3."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from registry import Vocabulary, heads
from registry.contracts.training import EmbeddingSizes


@heads.register("deberta_replaced", initialized_by_lab=True)
class DebertaReplacedHead(nn.Module):
    """Replaced token detection: add the state of [CLS], LayerNorm, dense, GELU, one logit per position.

    As in microsoft/DeBERTa (replaced_token_detection_model.py). The backbone `deberta` has it for `replaced`. No class
    of transformers has its layers.
    """

    def __init__(self, dim: int, sizes: EmbeddingSizes, vocabulary: Vocabulary | None, /) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=1e-7)
        self.dense, self.out = nn.Linear(dim, dim), nn.Linear(dim, 1)

    def forward(self, states: Float[Tensor, "B T D"]) -> Float[Tensor, "B T"]:
        logits: Tensor = self.out(F.gelu(self.dense(self.norm(states + states[:, :1])))).squeeze(-1)
        return logits

    def flops(self, length: int, masked: int) -> int:
        dim = self.dense.in_features
        return 2 * length * (dim * dim + dim)
