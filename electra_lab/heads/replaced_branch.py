"""Replaced token detection with separate layers."""

from typing import Annotated, Any

from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from electra_lab.heads.replaced import ReplacedHead
from registry import Vocabulary, backbones, heads
from registry.contracts.training import EmbeddingSizes

WIDTH = 64  # of an attention head, as in all sizes of BERT and ELECTRA


@heads.register("replaced_branch", initialized_by_lab=True)
class ReplacedBranch(ReplacedHead):
    """Replaced token detection from the states of an inner layer: layers of BERT, then those of `replaced`.

    As in TEAMS (Shen et al. 2021, tensorflow/models), whose branch has a separate layer. Attention heads are 64 wide or
    the next larger width that divides D, and dropout is that of the embeddings.

    depth  number of layers
    """

    def __init__(
        self,
        dim: int,
        sizes: EmbeddingSizes,
        vocabulary: Vocabulary | None,
        /,
        *,
        depth: Annotated[int, Field(ge=1, le=1000)] = 1,
    ) -> None:
        super().__init__(dim, sizes, vocabulary)
        number = next(number for number in range(max(1, dim // WIDTH), 0, -1) if dim % number == 0)
        bert: Any = backbones.get("bert").component
        self.encoder = bert(dim, depth, number, sizes.max_length, dropout=sizes.dropout)

    def forward(  # type: ignore[override]  # it attends, too
        self,
        states: Float[Tensor, "B T D"],
        attention_mask: Bool[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T"]:
        return super().forward(self.encoder(states, attention_mask, documents))

    def flops(self, length: int, masked: int) -> int:
        return int(self.encoder.flops(length)) + super().flops(length, masked)

    def paper_flops(self, length: int, masked: int) -> float:
        return float(self.encoder.paper_flops(length)) + super().paper_flops(length, masked)
