"""Performer-style encoder: softmax attention estimated by random features, in time linear in the length."""

import hashlib
import math
from collections.abc import Sequence
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from electra_lab.backbones._windows import check_local_heads, local_attention
from electra_lab.model.layers import Kernel, add_feed_forward, add_linear
from electra_lab.model.network import Exits
from registry import Backbone, backbones


def random_features(features: int, width: int, generator: torch.Generator) -> Float[Tensor, "M d"]:
    """Gaussian vectors that are orthogonal in blocks of `width` (Choromanski et al. 2021, section 3.2).

    Each one by itself is N(0, I), so estimates stay unbiased; orthogonality lowers their variance.
    """
    blocks = math.ceil(features / width)
    gaussian = torch.randn(blocks, width, width, generator=generator, device="cpu", dtype=torch.float32)
    q, r = torch.linalg.qr(gaussian)
    # LAPACK's signs are a convention, not random: with them, directions are not uniform (Mezzadri 2007).
    q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    directions: Tensor = q.transpose(-2, -1).flatten(0, 1)[:features]
    others = torch.randn(features, width, generator=generator, device="cpu", dtype=torch.float32)
    vectors: Tensor = directions * torch.linalg.vector_norm(others, dim=1, keepdim=True)
    return vectors


def favor_attention(
    query: Float[Tensor, "B H T d"],
    key: Float[Tensor, "B H T d"],
    value: Float[Tensor, "B H T d"],
    visible: Bool[Tensor, "B T"],
    projection: Float[Tensor, "M d"],
) -> Float[Tensor, "B H T d"]:
    """softmax(q k / sqrt(d)) v by positive random features (FAVOR+), exact in the limit of many.

    exp(q k) is the mean over w ~ N(0, I) of exp(w q - |q|^2 / 2) exp(w k - |k|^2 / 2). Invisible keys have no
    features, so they are in neither of the sums. Every row of `visible` needs a position. Computed and returned in
    float32 at least, under autocast too: exponentials of bfloat16 numbers would be far off.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    hidden = ~visible[:, None, :, None]
    with torch.autocast(query.device.type, enabled=False):
        query, key, value, projection = query.to(wide), key.to(wide), value.to(wide), projection.to(wide)
        query, key = query * query.shape[-1] ** -0.25, key * key.shape[-1] ** -0.25
        q = query @ projection.T  # |q|^2 / 2 is the same for all features, so it cancels
        k = key @ projection.T - key.square().sum(-1, keepdim=True) / 2
        k = k.masked_fill(hidden, float("-inf"))
        # Two shifts that cancel too: each feature's largest exponent moves from the keys to the queries, then each
        # query's largest is taken off. Some product of the two is exp(0), so the weights sum to at least 1: a division
        # by next to nothing cannot happen, and the division needs no epsilon, which would bias the estimate.
        peak = k.amax(-2, keepdim=True).detach()
        q = q + peak
        q, k = (q - q.amax(-1, keepdim=True).detach()).exp(), (k - peak).exp()
        summary = k.transpose(-2, -1) @ value.masked_fill(hidden, 0.0)
        return (q @ summary) / (q @ k.sum(-2).unsqueeze(-1))


def rotate(x: Float[Tensor, "B H T d"], angles: Float[Tensor, "T d/2"]) -> Float[Tensor, "B H T d"]:
    """Turn each pair of numbers by its position's angle, so that products depend on the distance (Su et al. 2021)."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class _Layer(nn.Module):
    def __init__(self, dim: int, heads: int, local_heads: int, window: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm, self.output_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query, self.key, self.value, self.attended = (nn.Linear(dim, dim) for _ in range(4))
        self.expand, self.contract = nn.Linear(dim, inner), nn.Linear(inner, dim)
        self.heads, self.local_heads, self.window, self.dropout = heads, local_heads, window, dropout
        self.kernel: Kernel = "fused"

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        visible: Bool[Tensor, "B T"],
        projection: Float[Tensor, "M d"],
        angles: Float[Tensor, "T d/2"] | None,
    ) -> Float[Tensor, "B T D"]:
        p = self.dropout if self.training else 0.0
        normed = self.attention_norm(x)
        whole = self.query(normed), self.key(normed), self.value(normed)
        q, k, v = [columns.unflatten(-1, (self.heads, -1)).transpose(1, 2) for columns in whole]
        if angles is not None:
            q, k = rotate(q, angles), rotate(k, angles)
        n = self.local_heads
        attended = favor_attention(q[:, n:], k[:, n:], v[:, n:], visible, projection).to(x.dtype)
        if n:
            near = local_attention(q[:, :n], k[:, :n], v[:, :n], visible, self.window, p, self.kernel)
            attended = torch.cat([near.to(x.dtype), attended], dim=1)
        x = add_linear(x, attended.transpose(1, 2).flatten(2), self.attended, p)
        return add_feed_forward(x, self.output_norm, self.expand, self.contract, p, pre=True)


@backbones.register("performer", initialized_by_lab=True)
class Performer(Backbone, nn.Module):
    """Pre-LayerNorm encoder with FAVOR+ attention, linear in the length (Choromanski et al. 2021).

    rotary        rotary positions (Su et al. 2021) in every layer; without, the lab adds learned positions
    features      random features that estimate the softmax, shared by a layer's heads; more features are more exact and
                  cost in proportion. The paper suggests d log d for heads of width d: 111 at 32, 266 at 64; see below
    local_heads   number of heads with exact attention over their window of positions and its two neighbours, instead
                  of features: exact nearby, where an estimate is poor, but without distant positions
    window        positions in a window; with local heads, the lab pads the length to a multiple of it
    redraw_every  steps after which new features are drawn, so that weights do not adapt to one draw; 0 keeps the first
                  draw, which is the same for every seed

    Features estimate soft attention well and sharp attention badly, because their error grows exponentially with the
    size of queries and keys. Example: a width of 32, 128 positions and 256 features, with normal queries and keys. For
    standard deviations of 0.25, 0.5 and 1, the error is 0.04, 0.24 and 1.6 of the norm of the exact result. At 1 that
    is worse than returning zeros, and 4,096 features still have an error of 1.2.

    They depend on (seed, step // redraw_every) alone, so generator and discriminator share them if their heads are of
    equal width. They are a buffer, so a checkpoint or an export holds those that its weights were trained with, and
    evaluation uses them. Dropout acts on the outputs of layers and on the attention weights of local heads; the
    other heads have no matrix of weights.
    """

    inner_states = True
    features: Tensor

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        max_length: int,
        /,
        *,
        rotary: bool = True,
        features: Annotated[int, Field(ge=1, le=65_536)] = 256,
        redraw_every: Annotated[int, Field(ge=0, le=10**9)] = 1000,
        local_heads: Annotated[int, Field(ge=0, le=65_536)] = 0,
        window: Annotated[int, Field(ge=1, le=1 << 24)] = 64,
        ff_mult: Annotated[float, Field(gt=0, le=1000)] = 4.0,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1,
    ) -> None:
        super().__init__()
        width = dim // heads
        if rotary and width % 2:
            raise ValueError(f"rotary positions need an even head width; dim {dim} / heads {heads} is {width}.")
        check_local_heads(local_heads, heads)
        self.dim, self.inner = dim, round(dim * ff_mult)
        self.local_heads, self.far_heads, self.window = local_heads, heads - local_heads, window
        if self.inner < 1:
            raise ValueError(f"ff_mult {ff_mult} leaves the feed-forward no width at dim {dim}.")
        self.positions = "own" if rotary else "lab"
        self.length_multiple = window if local_heads else 1
        self.redraw_every = redraw_every
        # Separate ones per layer: with shared ones, all layers would err in the same directions, and errors add up.
        self.register_buffer("features", torch.empty(depth, features, width))
        self.layers = nn.ModuleList(_Layer(dim, heads, local_heads, window, self.inner, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        if not self.features.is_meta:  # where nothing can be drawn
            self._draw(0, 0)
        # Unknown at first: a checkpoint may fill the buffer before the first step.
        self._drawn: tuple[int, int, int] | None = None

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        attention_mask: Bool[Tensor, "B T"],
        *,
        depths: Sequence[int] = (),
        detach: bool = False,
    ) -> Float[Tensor, "B T D"] | tuple[Float[Tensor, "B T D"], ...]:
        visible = attention_mask | ~attention_mask.any(-1, keepdim=True)  # a row of padding alone must see something
        angles = self._angles(x) if self.positions == "own" else None
        exits = Exits(depths, len(self.layers), detach, self.norm)
        for depth, (layer, features) in enumerate(zip(self.layers, self.features, strict=True), 1):
            x = exits.after(depth, layer(x, visible, features, angles))
        return exits.result(self.norm(x))

    def at_step(self, seed: int, step: int) -> None:
        """Draw new features where an interval begins; knowing the step is knowing the features."""
        if not self.redraw_every or self.features.is_meta:
            return
        interval = seed, step // self.redraw_every
        if (*interval, self.features._version) != self._drawn:  # or something else was loaded into them since
            self._draw(*interval)
            self._drawn = (*interval, self.features._version)

    def _draw(self, seed: int, interval: int) -> None:
        # On the CPU, from a separate generator: the same features on every device and rank.
        key = hashlib.blake2b(f"performer {seed} {interval}".encode(), digest_size=8).digest()
        generator = torch.Generator("cpu").manual_seed(int.from_bytes(key, "big", signed=True))
        depth, number, width = self.features.shape
        self.features.copy_(torch.stack([random_features(number, width, generator) for _ in range(depth)]))

    def _angles(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "T half"]:
        """Positions times frequencies, from 1 down to 1/10,000, in float32 at least."""
        half, wide = self.features.shape[-1] // 2, torch.promote_types(x.dtype, torch.float32)
        frequencies = 10_000.0 ** (torch.arange(half, device=x.device, dtype=wide) / -half)
        return torch.arange(x.shape[1], device=x.device, dtype=wide).unsqueeze(1) * frequencies

    def flops(self, length: int) -> int:
        """Per layer, with M features, C of the D columns in the H heads that use them and L in local heads with windows
        of S: four projections 8 T D^2, features of queries and keys 4 T C M, the sum over keys and its use 4 T C M, the
        normaliser 2 T H M, local attention over 3S keys 12 T S L, feed-forward 4 T D F."""
        t, d, (_, m, width) = length, self.dim, self.features.shape
        estimated = 8 * t * m * width * self.far_heads + 2 * t * m * self.far_heads
        local = 12 * t * self.window * width * self.local_heads
        return len(self.layers) * (8 * t * d * d + estimated + local + 4 * t * d * self.inner)
