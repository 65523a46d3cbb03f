"""A layer of BERT, of google-research/electra, and of each tower of `two_towers`."""

from jaxtyping import Float
from torch import Tensor, nn

from electra_lab.model.attention import Kernel, Visible, attend
from electra_lab.model.embeddings import LAYER_NORM_EPS
from electra_lab.model.residual import add_feed_forward, add_linear


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
        whole = self.query(x), self.key(x), self.value(x)
        q, k, v = [columns.unflatten(-1, (self.heads, -1)).transpose(1, 2) for columns in whole]
        attended = attend(q, k, v, visible, p, self.kernel)
        x = add_linear(x, attended.transpose(1, 2).flatten(2), self.attended, p)
        x = add_feed_forward(x, self.attention_norm, self.expand, self.contract, p, pre=False)
        normed: Tensor = self.output_norm(x)
        return normed
