"""x-transformers' Encoder, with its modern options."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.backbones._head_norm import HeadNorm
from electra_lab.backbones._rotary import turned
from electra_lab.backbones._windows import check_local_heads, local_attention
from electra_lab.backbones._x_transformers import Attention, Encoder, LayerNorm, RotaryEmbedding
from electra_lab.model.layers import Kernel, Softcap, Visible, as_additive_mask, attend, read_by, visible_in
from electra_lab.model.network import Exits
from registry import Backbone, backbones

THETA = 10_000.0


class Intermediates(NamedTuple):
    """The results of the first layer's attention that later layers read; the field has the library's name."""

    values: Float[Tensor, "B H T d"]


class KernelAttention(Attention):  # type: ignore[misc]  # the library has no types
    """The library's attention by the lab's kernels, in fewer passes over memory.

    The library expands the mask of the keys to every head and query before it reads it, and turns queries and keys by
    products with ones, copies and empty parts. Rotations may differ from the library's in their last bit, and states of
    padding altogether.
    """

    kernel: Kernel = "fused"
    local_heads: int
    window: int
    keeps_values: bool

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        context_mask: Bool[Tensor, "B T"] | None = None,
        attn_mask: Visible = None,
        rotary_pos_emb: tuple[Float[Tensor, "T half"], Float[Tensor, "T half"]] | None = None,
        value_residual: Float[Tensor, "B H T d"] | None = None,
        **_: Any,  # of the library's other kinds of encoders
    ) -> tuple[Float[Tensor, "B T D"], Any]:
        """
        rotary_pos_emb  cosines and sines, not the library's angles
        value_residual  values of the first layer
        """
        x, *whole = read_by((self.to_q, self.to_k, self.to_v), x)
        q, k, v = (columns.unflatten(-1, (self.heads, -1)).transpose(1, 2) for columns in whole)
        intermediates = Intermediates(v) if self.keeps_values else None
        if value_residual is not None:
            v = value_residual.lerp(v, self.to_value_residual_mix(x))
        if self.q_rmsnorm is not None:
            q, k = self.q_rmsnorm(q), self.k_rmsnorm(k)
        if rotary_pos_emb is not None:
            q, k = turned(q, *rotary_pos_emb), turned(k, *rotary_pos_emb)
        visible = attn_mask
        dropout, n = self.attend.dropout if self.training else 0.0, self.local_heads
        attended = attend(q[:, n:], k[:, n:], v[:, n:], visible, dropout, self.kernel)
        if n:
            q, k, v = q[:, :n], k[:, :n], v[:, :n]
            assert context_mask is not None, "local heads do not separate documents"
            near = local_attention(q, k, v, context_mask, self.window, dropout, self.kernel)
            attended = torch.cat([near, attended], dim=1)
        return self.to_out(attended.transpose(1, 2).flatten(2)), intermediates


class OnePassNorm(LayerNorm):  # type: ignore[misc]
    """The library's norm without a bias, in one pass over memory instead of two."""

    def forward(self, x: Float[Tensor, "*N D"]) -> Float[Tensor, "*N D"]:
        if x.dtype != self.gamma.dtype:  # the product with the scale is of the wider type
            wider: Tensor = super().forward(x)
            return wider
        scale = self.gamma + 1.0 if self.unit_offset else self.gamma
        return F.layer_norm(x, x.shape[-1:], scale, eps=self.ln.eps)


@backbones.register("transformer", initialized_by_lab=True)
class Transformer(Backbone, nn.Module):
    """Pre-norm transformer encoder (x-transformers' Encoder), with the options of later encoders. All work together.

    rotary       rotary positions (Su et al. 2021) instead of the lab's learned ones
    theta        base of the rotary frequencies; larger for long rows. Needs rotary
    rmsnorm      RMSNorm (Zhang and Sennrich 2019) instead of LayerNorm
    glu          gated feed-forward (Shazeer 2020): `geglu` or `swiglu`; true means `geglu`. The width remains
                 dim * ff_mult, which is half as many weights again; two thirds of ff_mult give as many as without
    bias         biases of the feed-forward layers and the gates of value_residual; attention and norms have none
    qk_norm      RMSNorm of the queries and keys of each head, with learned scales (Henry et al. 2020; Dehghani et al.
                 2023)
    value_residual  mixture of each later layer's values with those of the first (Zhou et al. 2024), by a learned
                 gate for each token and head that begins near one half
    softcap      bound c of the attention scores s, which become c tanh(s / c) (Gemma Team 2024); 0 for none. Fused
                 kernels cannot do it, so memory grows with the square of the length
    flash        torch's fused attention kernels, unless the lab finds that others are faster
    local_heads  number of heads in which a position sees only its window and the two neighbouring ones, not the whole
                 row; needs flash. Documents in a row cannot be separated with it
    window       positions in a window; with local heads, the lab pads the length to a multiple of it
    """

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
        theta: Annotated[float, Field(ge=1, le=1e12)] = THETA,
        rmsnorm: bool = False,
        glu: bool | Literal["geglu", "swiglu"] = False,
        bias: bool = True,
        qk_norm: bool = False,
        value_residual: bool = False,
        softcap: Annotated[float, Field(ge=0, le=1e6)] = 0.0,
        flash: bool = True,
        local_heads: Annotated[int, Field(ge=0, le=65_536)] = 0,
        window: Annotated[int, Field(ge=1, le=1 << 24)] = 64,
    ) -> None:
        super().__init__()
        if rotary and (dim // heads) % 2:
            raise ValueError(f"rotary positions need an even head width; dim {dim} / heads {heads} is {dim // heads}.")
        if rotary and dim == 2 * heads:
            raise ValueError(f"rotary positions need a head width of at least 4; dim {dim} / heads {heads} is 2.")
        if theta != THETA and not rotary:
            raise ValueError(
                f"theta {theta:g} needs rotary: true. "
                "A generator takes theta over from the discriminator, unless it sets its own."
            )
        if int(dim * ff_mult) < 1:
            raise ValueError(f"ff_mult {ff_mult} leaves the feed-forward no width at dim {dim}.")
        check_local_heads(local_heads, heads)
        if local_heads and not flash:
            raise ValueError("local_heads needs flash: true.")
        self.positions = "own" if rotary else "lab"
        self.length_multiple = window if local_heads else 1
        self.separates_documents = not local_heads  # the tokens of a window depend on a document's place in the row
        self.inner_states = not value_residual  # by which later layers reach into the first
        self.local_dim, self.window = dim // heads * local_heads, window
        self.dim, self.depth, self.ff_mult, self.glu = dim, depth, ff_mult, glu
        self.dropout, self.gates = dropout, heads * (depth - 1) if value_residual else 0
        self.encoder = Encoder(
            dim=dim,
            depth=depth,
            heads=heads,
            attn_dim_head=dim // heads,
            attn_flash=flash,
            attn_dropout=dropout,
            attn_softclamp_logits=bool(softcap) and not flash,
            attn_logit_softclamp_value=softcap,
            add_value_residual=value_residual,
            ff_mult=ff_mult,
            ff_glu=bool(glu),
            ff_swish=glu == "swiglu",
            ff_dropout=dropout,
            verbose=False,
            use_rmsnorm=rmsnorm,
        )
        if rotary:  # of all columns, as in the paper; the library rotates half
            with torch.device("cpu"):  # a check builds on the meta device, where the table needs torch's compiler
                self.encoder.rotary_pos_emb = RotaryEmbedding(dim // heads, base=theta)
        self.flash = flash
        # The library builds its layers itself; the lab's take their places, under the same names.
        for number, (norms, _, _) in enumerate(self.encoder.layers):
            if not rmsnorm:
                norms[0] = OnePassNorm(dim, unit_offset=norms[0].unit_offset)
            if number % 2:
                continue
            if flash:
                attention = KernelAttention(
                    dim, heads=heads, dim_head=dim // heads, flash=True, dropout=dropout,
                    learned_value_residual_mix=value_residual and number > 0,
                )  # fmt: skip
                attention.local_heads, attention.window = local_heads, window
                attention.keeps_values = value_residual and not number
                attention.kernel = Softcap(softcap) if softcap else "fused"
                self.encoder.layers[number][1] = attention
            if qk_norm:
                attention = self.encoder.layers[number][1]
                attention.q_rmsnorm, attention.k_rmsnorm = (HeadNorm(heads, dim // heads) for _ in range(2))
        if not rmsnorm:
            self.encoder.final_norm = OnePassNorm(dim, unit_offset=self.encoder.final_norm.unit_offset)
        if not bias:  # the library's option leaves those of gated layers
            for module in self.encoder.modules():
                if isinstance(module, nn.Linear):
                    module.register_parameter("bias", None)
        # x-transformers alternates attention and feed-forward; a layer of the lab is one of each.
        blocks = list(self.encoder.layers)
        self.layers = [nn.ModuleList(blocks[i : i + 2]) for i in range(0, len(blocks), 2)]

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        attention_mask: Bool[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None = None,
        *,
        depths: Sequence[int] = (),
        detach: bool = False,
    ) -> Float[Tensor, "B T D"] | tuple[Float[Tensor, "B T D"], ...]:
        visible = keys = None
        if self.flash or documents is not None:
            most = None if self.training and self.dropout else self.most_pieces(attention_mask, documents)
            full = attention_mask is self.full_mask
            visible = visible_in(attention_mask, documents, blocks=self.flash, most=most, full=full)
            visible = as_additive_mask(visible, x) if self.flash else visible
        if self.local_dim or (visible is None and not self.flash):
            # Padding might leave the softmax without a key, hence NaN: there, all keys are seen.
            keys = attention_mask | ~attention_mask.any(-1, keepdim=True)
        exits = Exits(depths, self.depth, detach, self.encoder.final_norm)
        # Only keys are masked. Given `mask`, the library also sets padding to zero, which turns bfloat16 states into
        # float32, and fixes the traced sizes in an ONNX export.
        states: Tensor = self.encoder(
            x,
            self_attn_kv_mask=keys,
            attn_mask=visible,
            rotary_pos_emb=self._turns(x) if self.flash and self.positions == "own" else None,
            transform_block_inputs={depth + 1: partial(exits.after, depth) for depth in depths},
        )
        return exits.result(states)

    def _turns(self, x: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "T half"], Float[Tensor, "T half"]]:
        """Return the cosines and sines of all positions' angles, once for all layers."""
        angles, _ = self.encoder.rotary_pos_emb(torch.arange(x.shape[1], device=x.device))
        angles = angles[0, :, ::2]  # each occurs twice: neighbours in a vector are a pair
        return angles.cos(), angles.sin()

    def flops(self, length: int) -> int:
        """Per layer, with L of the D columns in local heads with windows of S: four projections 8 T D^2, attention
        4 T^2 (D - L) and 12 T S L, feed-forward 4 T D F (6 T D F with GLU);
        gates of H values 2 T D H, but for the first layer."""
        inner = int(self.dim * self.ff_mult)
        feed_forward = (6 if self.glu else 4) * length * self.dim * inner
        attention = 4 * length**2 * (self.dim - self.local_dim) + 12 * length * self.window * self.local_dim
        gates = 2 * length * self.dim * self.gates
        return self.depth * (8 * length * self.dim**2 + attention + feed_forward) + gates
