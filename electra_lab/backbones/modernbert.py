"""The encoder of ModernBERT."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from electra_lab.backbones._head_norm import HeadNorm
from electra_lab.backbones._rotary import halves_turned, split_and_turned
from electra_lab.backbones._windows import sliding_attention, sliding_mask
from electra_lab.model.layers import Kernel, Visible, as_additive_mask, attend, visible_in
from electra_lab.model.long_rows import WINDOWS, Sequences, reads_sequences
from electra_lab.model.network import Exits, truncated_normal_
from registry import Backbone, backbones

EPS = 1e-5
DENSE_BELOW = 4  # reaches; shorter rows are faster with a dense mask than in blocks
Turn = tuple[Float[Tensor, "T half"], Float[Tensor, "T half"]]  # cosines and sines of every position
Share = Annotated[float, Field(ge=0, lt=1)]


class _Layer(nn.Module):
    """Pre-norm attention and a gated feed-forward network. `reach` is how far a position sees, None for the row."""

    def __init__(
        self, dim: int, heads: int, inner: int, *, first: bool, reach: int | None, dropouts: tuple[float, float, float]
    ) -> None:
        super().__init__()
        # The norm of the embeddings comes right before the first layer.
        self.attention_norm = nn.Identity() if first else nn.LayerNorm(dim, eps=EPS, bias=False)
        self.qkv, self.attended = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.feed_forward_norm = nn.LayerNorm(dim, eps=EPS, bias=False)
        self.expand, self.contract = nn.Linear(dim, 2 * inner, bias=False), nn.Linear(inner, dim, bias=False)
        self.query_norm: HeadNorm | None = None
        self.key_norm: HeadNorm | None = None
        self.heads, self.reach, self.dropouts = heads, reach, dropouts
        self.kernel: Kernel = "fused"

    @torch.no_grad()
    def initialise(self, depth: int) -> None:
        truncated_normal_(self.qkv.weight)
        truncated_normal_(self.expand.weight)
        for into_residual in (self.attended, self.contract):
            truncated_normal_(into_residual.weight, scale=(2 * depth) ** -0.5)

    def forward(
        self, x: Float[Tensor, "B T D"], turn: Turn, seen: Visible | Bool[Tensor, "..."]
    ) -> Float[Tensor, "B T D"]:
        """seen  visible_in(...) for the whole row; for a layer with a reach the same with it, or sliding_mask(...)"""
        on_weights, on_attended, on_gated = self.dropouts if self.training else (0.0, 0.0, 0.0)
        # Attention: [B T 3D] -> three of [B H T d]
        columns = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        if self.query_norm is None or self.key_norm is None:
            q, k, v = split_and_turned(columns, *turn)
        else:
            q, k, v = columns.permute(2, 0, 3, 1, 4).unbind()
            q, k = halves_turned(self.query_norm(q), *turn), halves_turned(self.key_norm(k), *turn)
        if isinstance(seen, Sequences) and seen.reach and not reads_sequences(q, v, on_weights, self.kernel):
            seen = sliding_mask(seen.attention_mask, seen.reach, seen.documents)
        if self.reach is not None and isinstance(seen, Tensor) and seen.dim() == 5:
            attended = sliding_attention(q, k, v, seen, self.reach, on_weights, self.kernel)
        else:
            attended = attend(q, k, v, seen, on_weights, self.kernel)
        x = x + F.dropout(self.attended(attended.transpose(1, 2).flatten(2)), on_attended)
        # Feed-forward: the first half is activated, and gates the second.
        return x + self._contracted(self.expand(self.feed_forward_norm(x)), on_gated)

    def _contracted(self, expanded: Float[Tensor, "B T double"], dropout: float) -> Float[Tensor, "B T D"]:
        """The backward pass computes the gated product again instead of keeping it, without dropout."""
        if dropout or not _is_plain(self.contract, expanded):
            gate, linear = expanded.chunk(2, dim=-1)
            plain: Tensor = self.contract(F.dropout(F.gelu(gate) * linear, dropout))
            return plain
        contracted: Tensor = _Contracted.apply(expanded, self.contract.weight)  # type: ignore[no-untyped-call]
        return contracted


def _is_plain(linear: nn.Module, x: Tensor) -> bool:
    """Return True if nothing changes or reads the results of torch's linear layer, in the precision of x."""
    hooks = linear._forward_hooks or linear._forward_pre_hooks or linear._backward_hooks or linear._backward_pre_hooks
    eager = not (torch.compiler.is_compiling() or torch.is_autocast_enabled(x.device.type))
    return eager and type(linear) is nn.Linear and "forward" not in vars(linear) and not hooks


class _Contracted(torch.autograd.Function):
    """The linear layer of a gated product, which stores its input alone."""

    @staticmethod
    def forward(ctx: Any, expanded: Float[Tensor, "B T double"], weight: Float[Tensor, "D F"]) -> Tensor:
        ctx.save_for_backward(expanded, weight)
        gate, linear = expanded.chunk(2, dim=-1)
        return F.linear(F.gelu(gate).mul_(linear), weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "B T D"]) -> tuple[Tensor, Tensor]:
        expanded, weight = ctx.saved_tensors
        gate, linear = expanded.chunk(2, dim=-1)
        activated, of_product = F.gelu(gate), gradient @ weight  # [B T F] each
        of_expanded = torch.empty_like(expanded)
        of_gate, of_linear = of_expanded.chunk(2, dim=-1)
        torch.mul(of_product, activated, out=of_linear)
        of_weight = gradient.flatten(0, 1).t() @ activated.mul_(linear).flatten(0, 1)
        of_gate.copy_(torch.ops.aten.gelu_backward(of_product.mul_(linear), gate))
        return of_expanded, of_weight


@backbones.register("modernbert")
class ModernBert(Backbone, nn.Module):
    """ModernBERT's encoder (Warner et al. 2024): rotary positions, global and local layers, GeGLU, no biases.

    Its weights map one to one onto those of transformers' ModernBERT, and have that model's initial distribution:
    normal of deviation 0.02, for the two projections into the residual stream 0.02 / sqrt(2 depth), cut at two
    deviations. The token vectors are normalized here, so the lab's embeddings are bare.

    ff_mult            width of the gated product in multiples of `dim`
    global_every       distance n of the layers 0, n, 2n, ... that see the whole row; in others a position sees the
                       `local_attention` positions around it
    dropout            dropout of attention's output, 0.1 in the authors' pre-training
    qk_norm            RMSNorm of the queries and keys of each head, with learned scales, as in later encoders.
                       transformers' class lacks it, so such a network is exported in the lab's format
    """

    positions = "own"
    bare_embeddings = True
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
        ff_mult: Annotated[float, Field(gt=0, le=1000)] = 1.5,
        global_every: Annotated[int, Field(ge=1, le=1000)] = 3,
        local_attention: Annotated[int, Field(ge=2, le=1 << 20)] = 128,
        global_theta: Annotated[float, Field(gt=0)] = 160_000.0,
        local_theta: Annotated[float, Field(gt=0)] = 10_000.0,
        dropout: Share = 0.1,
        attention_dropout: Share = 0.0,
        ff_dropout: Share = 0.0,
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        if dim // heads % 2:
            raise ValueError(f"rotary positions need an even head width; dim {dim} / heads {heads} is {dim // heads}.")
        self.dim, self.inner, self.reach = dim, round(dim * ff_mult), local_attention // 2
        if self.inner < 1:
            raise ValueError(f"ff_mult {ff_mult} leaves the feed-forward no width at dim {dim}.")
        self.embedding_norm = nn.LayerNorm(dim, eps=EPS, bias=False)
        self.embedding_dropout = nn.Dropout(0.0)  # the lab sets it to embedding.dropout
        dropouts = attention_dropout, dropout, ff_dropout
        self.layers = nn.ModuleList()
        for number in range(depth):
            reach = None if number % global_every == 0 else self.reach
            self.layers.append(_Layer(dim, heads, self.inner, first=not number, reach=reach, dropouts=dropouts))
            if qk_norm:
                self.layers[-1].query_norm = HeadNorm(heads, dim // heads)
                self.layers[-1].key_norm = HeadNorm(heads, dim // heads)
        self.final_norm = nn.LayerNorm(dim, eps=EPS, bias=False)
        self.width, self.global_theta, self.local_theta = dim // heads, global_theta, local_theta
        self.own_heads = {name: {"type": f"modernbert_{name}", "depth": depth} for name in ("tokens", "replaced")}
        for layer in self.layers:
            layer.initialise(depth)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        attention_mask: Bool[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None = None,
        *,
        depths: Sequence[int] = (),
        detach: bool = False,
    ) -> Float[Tensor, "B T D"] | tuple[Float[Tensor, "B T D"], ...]:
        length = x.shape[1]
        whole = visible_in(attention_mask, documents, most=self.most_pieces(attention_mask, documents))
        near, local_turn = whole, None
        if any(layer.reach is not None for layer in self.layers):
            local_turn = self._turn(length, self.local_theta, x.device)
            if torch.compiler.is_exporting() or length > self.reach + 1:
                near = self._near(whole, attention_mask, documents)
        if documents is None and attention_mask is self.full_mask:
            whole = None
        whole, turn = as_additive_mask(whole, x), self._turn(length, self.global_theta, x.device)
        x = self.embedding_dropout(self.embedding_norm(x))
        exits = Exits(depths, len(self.layers), detach, self.final_norm)
        for depth, layer in enumerate(self.layers, 1):
            x = layer(x, turn, whole) if layer.reach is None else layer(x, local_turn, near)
            x = exits.after(depth, x)
        return exits.result(self.final_norm(x))

    def _near(
        self, whole: Visible, attention_mask: Bool[Tensor, "B T"], documents: Tensor | None
    ) -> Visible | Bool[Tensor, "..."]:
        """Return what local layers see: in sequences; or in blocks, or dense [B 1 T T] for short rows and an export."""
        if isinstance(whole, Sequences) and WINDOWS:
            return replace(whole, reach=self.reach)
        # Check for an export first: a comparison of lengths would limit its length.
        long = not torch.compiler.is_exporting() and attention_mask.shape[1] > DENSE_BELOW * self.reach
        if long or not isinstance(whole, Tensor):
            return sliding_mask(attention_mask, self.reach, documents)
        places = torch.arange(attention_mask.shape[1], device=attention_mask.device)
        near = whole & ((places[:, None] - places).abs() <= self.reach)
        return near | ~near.any(-1, keepdim=True)

    def _turn(self, length: int, theta: float, device: torch.device) -> Turn:
        steps = torch.arange(0, self.width, 2, device=device, dtype=torch.float32) / self.width
        angles = torch.arange(length, device=device, dtype=torch.float32)[:, None] * (1.0 / theta**steps)
        return angles.cos(), angles.sin()

    def flops(self, length: int) -> int:
        """Per layer: projections 8 T D^2, gated feed-forward 6 T D F, attention 4 T^2 D; in a local layer with a reach
        of R below T / 4, blocks of R queries with 3 R keys: 12 R D for each position of whole blocks."""
        total = 0
        for layer in self.layers:
            total += 8 * length * self.dim**2 + 6 * length * self.dim * self.inner
            if layer.reach is None or length <= DENSE_BELOW * self.reach:
                total += 4 * length**2 * self.dim
            else:
                total += 12 * (length + -length % self.reach) * self.reach * self.dim
        return total
