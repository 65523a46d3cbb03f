"""A vector for a whole row, to contrast it with others."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.model.network import LAYER_NORM_EPS
from registry import Vocabulary, heads
from registry.contracts.training import EmbeddingSizes


@heads.register("contrast", initialized_by_lab=True)
class ContrastHead(nn.Module):
    """A vector of width D for each row: the state of [CLS], dense, GELU, LayerNorm.

    As in COCO-LM (microsoft/COCO-LM, SCLHead of model.py), whose width is an option that is D for its base size.
    """

    def __init__(self, dim: int, sizes: EmbeddingSizes, vocabulary: Vocabulary | None, /) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim, eps=LAYER_NORM_EPS)

    def forward(self, states: Float[Tensor, "B T D"]) -> Float[Tensor, "B D"]:
        vectors: Tensor = self.norm(F.gelu(self.dense(states[:, 0])))
        return vectors

    def flops(self, length: int, masked: int) -> int:
        """The state of one position is read."""
        return 2 * self.dense.in_features**2
