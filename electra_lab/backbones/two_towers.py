"""Two causal encoders: what comes before a token and what comes after it, without the token."""

from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.backbones.bert import BertLayer
from registry import Backbone, backbones


class _Layer(nn.Module):
    """A layer of each tower."""

    def __init__(self, dim: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.forwards, self.backwards = (BertLayer(dim, heads, inner, dropout) for _ in range(2))

    def forward(
        self,
        past: Float[Tensor, "B T d"],
        future: Float[Tensor, "B T d"],
        earlier: Bool[Tensor, "B 1 T T"],
        later: Bool[Tensor, "B 1 T T"],
    ) -> tuple[Float[Tensor, "B T d"], Float[Tensor, "B T d"]]:
        return self.forwards(past, earlier), self.backwards(future, later)


@backbones.register("two_towers", initialized_by_lab=True, cloze=True)
class TwoTowers(Backbone, nn.Module):
    """Two causal BERT encoders, one from each end: the state of a position depends on all tokens but the one there.

    The noise model of Electric (Clark et al. 2020; `two_tower_generator` of google-research/electra): the left-to-right
    tower is read at the position before, the right-to-left one at the position after, and the two are concatenated.
    Each tower has half of `dim` and as many heads as `heads`, and reads half of the input. Before the first token and
    after the last one, the state is zero; in the official code the ends wrap around. The lab adds learned positions.
    It is for generators. A discriminator that does not see a token cannot judge it, so objectives that ask for that
    refuse it.
    """

    separates_documents = True

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
        if dim % (2 * heads):
            raise ValueError(f"each tower has half of dim {dim}, which {heads} heads do not divide.")
        self.dim, self.inner = dim // 2, round(dim // 2 * ff_mult)
        if self.inner < 1:
            raise ValueError(f"ff_mult {ff_mult} leaves the feed-forward no width at dim {dim} / 2.")
        self.layers = nn.ModuleList(_Layer(self.dim, heads, self.inner, dropout) for _ in range(depth))

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        attention_mask: Bool[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        # Real tokens of the same document see each other; every position sees itself, as the softmax of nothing is NaN.
        seen = attention_mask[:, :, None] & attention_mask[:, None, :]
        if documents is not None:
            seen = seen & (documents[:, :, None] == documents[:, None, :])
        itself = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        earlier, later = (seen.tril() | itself)[:, None], (seen.triu() | itself)[:, None]  # [B 1 T T]
        past, future = x.chunk(2, dim=-1)  # [B T D] -> [B T D/2] each
        for layer in self.layers:
            past, future = layer(past, future, earlier, later)
        # Each position reads its two neighbours, of those that it may see.
        hidden = ~seen.diagonal(1, 1, 2).unsqueeze(-1)  # [B T-1 1]
        before = F.pad(past[:, :-1].masked_fill(hidden, 0.0), (0, 0, 1, 0))
        after = F.pad(future[:, 1:].masked_fill(hidden, 0.0), (0, 0, 0, 1))
        return torch.cat([before, after], dim=-1)

    def flops(self, length: int) -> int:
        """Per layer and tower of width d: four projections 8 T d^2, attention 4 T^2 d, feed-forward 4 T d F."""
        layer = 8 * length * self.dim**2 + 4 * length**2 * self.dim + 4 * length * self.dim * self.inner
        return 2 * len(self.layers) * layer
