"""The encoder of BERT and of google-research/electra."""

from collections.abc import Sequence
from typing import Annotated

from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from electra_lab.model.layers import (
    Kernel,
    Visible,
    add_feed_forward,
    add_linear,
    as_additive_mask,
    attend,
    read_by,
    visible_in,
)
from electra_lab.model.network import LAYER_NORM_EPS, Exits
from registry import Backbone, backbones


class BertLayer(nn.Module):
    """Attention and feed-forward, each with LayerNorm after it (Devlin et al. 2019)."""

    def __init__(self, dim: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.query, self.key, self.value, self.attended = (nn.Linear(dim, dim) for _ in range(4))
        self.attention_norm = nn.LayerNorm(dim, eps=LAYER_NORM_EPS)
        self.expand, self.contract = nn.Linear(dim, inner), nn.Linear(inner, dim)
        self.output_norm = nn.LayerNorm(dim, eps=LAYER_NORM_EPS)
        self.heads, self.dropout = heads, dropout
        self.kernel: Kernel = "fused"

    def forward(self, x: Float[Tensor, "B T D"], visible: Visible) -> Float[Tensor, "B T D"]:
        p = self.dropout if self.training else 0.0
        x, *projected = read_by((self.query, self.key, self.value), x)
        q, k, v = [columns.unflatten(-1, (self.heads, -1)).transpose(1, 2) for columns in projected]
        attended = attend(q, k, v, visible, p, self.kernel)
        x = add_linear(x, attended.transpose(1, 2).flatten(2), self.attended, p)
        x = add_feed_forward(x, self.attention_norm, self.expand, self.contract, p, pre=False)
        normed: Tensor = self.output_norm(x)
        return normed


@backbones.register("bert", initialized_by_lab=True)
class Bert(Backbone, nn.Module):
    """Post-LayerNorm transformer encoder of BERT and ELECTRA (Devlin et al. 2019; Clark et al. 2020).

    Its weights map one to one onto those of `google/electra-*`. The lab adds learned positions.
    """

    separates_documents = True
    inner_states = True

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        max_length: int,
        /,
        *,
        ff_mult: Annotated[float, Field(gt=0, le=1000)] = 4.0,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1,
    ) -> None:
        super().__init__()
        self.dim, self.heads, self.inner, self.dropout = dim, heads, round(dim * ff_mult), dropout
        if self.inner < 1:
            raise ValueError(f"ff_mult {ff_mult} leaves the feed-forward no width at dim {dim}.")
        self.layers = nn.ModuleList(BertLayer(dim, heads, self.inner, dropout) for _ in range(depth))

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        attention_mask: Bool[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None = None,
        *,
        depths: Sequence[int] = (),
        detach: bool = False,
    ) -> Float[Tensor, "B T D"] | tuple[Float[Tensor, "B T D"], ...]:
        most = None if self.training and self.dropout else self.most_pieces(attention_mask, documents)
        full = attention_mask is self.full_mask
        visible = as_additive_mask(visible_in(attention_mask, documents, most=most, full=full), x)
        exits = Exits(depths, len(self.layers), detach)
        for depth, layer in enumerate(self.layers, 1):
            x = exits.after(depth, layer(x, visible))
        return exits.result(x)

    def flops(self, length: int) -> int:
        """Per layer: four projections 8 T D^2, attention 4 T^2 D, feed-forward 4 T D F."""
        layer = 8 * length * self.dim**2 + 4 * length**2 * self.dim + 4 * length * self.dim * self.inner
        return len(self.layers) * layer

    def paper_flops(self, length: int) -> int:
        """As flops_computation.py of google-research/electra counts: with biases and residuals (1 for each number),
        dropout (4), LayerNorm (5; the one after attention for one number only) and GELU (8), and for each attention
        weight softmax (5), dropout (4) and scaling (1).
        """
        d, f, heads = self.dim, self.inner, self.heads
        attention = 8 * d * d + 4 * length * d + 10 * length * heads + 9 * d + 5
        fed = 4 * d * f + 9 * f + 11 * d
        return len(self.layers) * length * (attention + fed)
