"""The logit of "replaced" at each position."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.model.flops import GELU
from registry import Vocabulary, heads
from registry.contracts.training import EmbeddingSizes


@heads.register("replaced", initialized_by_lab=True, exports_as="ForPreTraining")
class ReplacedHead(nn.Module):
    """Replaced token detection: dense, GELU, one logit per position (positive = replaced).

    As in google-research/electra (run_pretraining.py).
    """

    def __init__(self, dim: int, sizes: EmbeddingSizes, vocabulary: Vocabulary | None, /) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, 1)

    def forward(self, states: Float[Tensor, "*N D"]) -> Float[Tensor, "*N"]:
        logits: Tensor = self.out(F.gelu(self.dense(states))).squeeze(-1)
        return logits

    @property
    def glorot_layers(self) -> Sequence[nn.Module]:
        """The official code names no initializer for the last layer."""
        return [self.out]

    def flops(self, length: int, masked: int) -> int:
        dim = self.dense.in_features
        return 2 * length * (dim * dim + dim)

    def paper_flops(self, length: int, masked: int) -> float:
        dim = self.dense.in_features
        return length * (2 * dim * dim + (1 + GELU + 2) * dim)
