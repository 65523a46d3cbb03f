"""x-transformers' Encoder, with its modern options."""

from typing import Annotated, Any

from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn
from x_transformers import Encoder
from x_transformers.x_transformers import Attention

from electra_lab.backbones._rotary import turned
from electra_lab.model.attention import Kernel, attend
from registry import backbones


class _Attention(Attention):  # type: ignore[misc]  # the library has no types
    """The library's attention by the lab's own kernels, in fewer passes over memory.

    The library expands the mask of the keys to every head and query before it reads it, and turns queries and keys by
    products with ones, copies and empty parts. Rotations may differ from the library's in their last bit.
    """

    kernel: Kernel = "fused"

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        context_mask: Bool[Tensor, "B T"],
        attn_mask: Bool[Tensor, "B 1 T T"] | None = None,
        rotary_pos_emb: tuple[Float[Tensor, "1 T d"], float] | None = None,
        **_: Any,  # of the library's other kinds of encoders
    ) -> tuple[Float[Tensor, "B T D"], Any]:
        q, k, v = (
            linear(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for linear in (self.to_q, self.to_k, self.to_v)
        )
        if rotary_pos_emb is not None:
            angles = rotary_pos_emb[0][..., ::2]  # each stands there twice: neighbours in a vector are a pair
            cosine, sine = angles.cos(), angles.sin()
            q, k = turned(q, cosine, sine), turned(k, cosine, sine)
        visible = context_mask[:, None, None, :]
        if attn_mask is not None:
            visible = visible & attn_mask
        some = visible.any(-1, keepdim=True)  # a softmax of nothing is NaN in some kernels
        attended = attend(q, k, v, visible | ~some, self.attend.dropout if self.training else 0.0, self.kernel)
        attended = attended.masked_fill(~some, 0.0)
        return self.to_out(attended.transpose(1, 2).flatten(2)), None


@backbones.register("transformer")
class Transformer(nn.Module):
    """Pre-norm transformer encoder (x-transformers' Encoder): rotary, RMSNorm, GLU, flash as options.

    rotary   rotary positions (Su et al. 2021) instead of the lab's learned ones
    rmsnorm  RMSNorm (Zhang and Sennrich 2019) instead of LayerNorm
    glu      gated feed-forward (Shazeer 2020); adds half as many feed-forward weights again
    flash    torch's fused attention kernels, unless the lab finds that others are faster
    """

    length_multiple = 1
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
        rotary: bool = False,
        rmsnorm: bool = False,
        glu: bool = False,
        flash: bool = True,
    ) -> None:
        super().__init__()
        if rotary and (dim // heads) % 2:
            raise ValueError(f"rotary positions need an even head width; dim {dim} / heads {heads} is {dim // heads}.")
        if int(dim * ff_mult) < 1:
            raise ValueError(f"ff_mult {ff_mult} leaves the feed-forward no width at dim {dim}.")
        self.positions = "own" if rotary else "lab"
        self.dim, self.depth, self.ff_mult, self.glu = dim, depth, ff_mult, glu
        self.encoder = Encoder(
            dim=dim,
            depth=depth,
            heads=heads,
            attn_dim_head=dim // heads,
            attn_flash=flash,
            attn_dropout=dropout,
            ff_mult=ff_mult,
            ff_glu=glu,
            ff_dropout=dropout,
            rotary_pos_emb=rotary,
            rotary_emb_dim=dim // heads,  # all of it, as in the paper; the library rotates half
            verbose=False,
            use_rmsnorm=rmsnorm,
        )
        for module in self.encoder.modules():
            if flash and type(module) is Attention:  # the library builds its layers itself
                module.__class__ = _Attention
        # x-transformers alternates attention and feed-forward; a depth of ours is one of each.
        blocks = list(self.encoder.layers)
        self.layers = [nn.ModuleList(blocks[i : i + 2]) for i in range(0, len(blocks), 2)]

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        attention_mask: Bool[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        same = None if documents is None else (documents[:, :, None] == documents[:, None, :]).unsqueeze(1)
        # Only the keys are masked. Given `mask`, the library also sets padding to zero, which turns bfloat16 states
        # into float32, and fixes the traced sizes in an ONNX export.
        states: Tensor = self.encoder(x, self_attn_kv_mask=attention_mask, attn_mask=same)  # rotary: relative positions
        return states

    def at_step(self, seed: int, step: int) -> None:
        """Nothing changes over time."""

    def flops(self, length: int) -> int:
        """Per layer: four projections 8 T D^2, attention 4 T^2 D, feed-forward 4 T D F (6 T D F with GLU)."""
        inner = int(self.dim * self.ff_mult)
        feed_forward = (6 if self.glu else 4) * length * self.dim * inner
        return self.depth * (8 * length * self.dim**2 + 4 * length**2 * self.dim + feed_forward)
