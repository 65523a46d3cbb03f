"""The encoder of DeBERTa-v2 and DeBERTa-v3."""

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.backbones._disentangled import can_be_in_blocks, disentangled_attention, longest
from electra_lab.model.layers import add_feed_forward, add_linear, visible_in
from electra_lab.model.network import Exits, within_documents
from registry import Backbone, backbones

EPS = 1e-7
Share = Annotated[float, Field(ge=0, lt=1)]


class Places(NamedTuple):
    """Where a layer finds the position of each query and key in the table."""

    rows: Int[Tensor, " distances"]  # of the cut table, for query - key from the most negative on
    cut: slice  # of the table
    far: int  # distances from here on share a row
    in_blocks: bool  # attention does not need the rows of all pairs

    def of_pairs(self) -> Int[Tensor, "T T"]:
        length = (self.rows.shape[0] + 1) // 2  # len() would fix it in an export
        row = torch.arange(length, device=self.rows.device)
        return self.rows[row[:, None] - row + length - 1]


class _Layer(nn.Module):
    """BERT's layer with disentangled attention (He et al. 2021, section 3)."""

    def __init__(
        self, dim: int, heads: int, inner: int, *, shares: bool, dropout: float, attention_dropout: float
    ) -> None:
        super().__init__()
        self.query, self.key, self.value, self.attended = (nn.Linear(dim, dim) for _ in range(4))
        # Projections of the relative positions.
        self.position_key = None if shares else nn.Linear(dim, dim)
        self.position_query = None if shares else nn.Linear(dim, dim)
        self.attention_norm = nn.LayerNorm(dim, eps=EPS)
        self.expand, self.contract = nn.Linear(dim, inner), nn.Linear(inner, dim)
        self.output_norm = nn.LayerNorm(dim, eps=EPS)
        self.heads, self.dropout, self.attention_dropout = heads, dropout, attention_dropout

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        visible: Bool[Tensor, "B 1 #T T"],
        positions: Float[Tensor, "R D"],
        places: Places,
        queries: Float[Tensor, "B T D"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """queries  states that look at x, by default x itself"""
        p = self.dropout if self.training else 0.0
        asking = x if queries is None else queries
        q, k, v = self._by_head(self.query(asking)), self._by_head(self.key(x)), self._by_head(self.value(x))
        attended = self._attend(q, k, v, visible, positions, places).transpose(1, 2).flatten(2)
        y = add_linear(asking, attended, self.attended, p)
        normed: Tensor = self.output_norm(
            add_feed_forward(y, self.attention_norm, self.expand, self.contract, p, pre=False)
        )
        return normed

    def _by_head(self, columns: Float[Tensor, "*B T D"]) -> Float[Tensor, "*B H T d"]:
        heads: Tensor = columns.unflatten(-1, (self.heads, -1))  # type: ignore[no-untyped-call]
        return heads.transpose(-2, -3)

    def _attend(
        self,
        q: Float[Tensor, "B H T d"],
        k: Float[Tensor, "B H T d"],
        v: Float[Tensor, "B H T d"],
        visible: Bool[Tensor, "B 1 #T T"],
        positions: Float[Tensor, "R D"],
        places: Places,
    ) -> Float[Tensor, "B H T d"]:
        """Attend by (content to content + content to position + position to content) / sqrt(3 d).

        Tables of positions are not repeated for the rows of the batch.
        """
        positions = F.dropout(positions, self.dropout, self.training)[places.cut]
        key, query = self.position_key or self.key, self.position_query or self.query
        position_keys, position_queries = self._by_head(key(positions)), self._by_head(query(positions))  # [H R d]
        scale = (3 * q.shape[-1]) ** -0.5
        q, position_queries = q * scale, position_queries * scale
        dropout = self.attention_dropout if self.training else 0.0
        if places.in_blocks:
            by_distance = position_keys[:, places.rows.flip(0)], position_queries[:, places.rows]
            return disentangled_attention(q, k, v, *by_distance, visible, places.far, dropout)
        index = places.of_pairs().expand(*q.shape[:2], -1, -1)  # [B H T T]
        # Scores in float32 at least.
        scores = (q @ k.transpose(-2, -1)).to(torch.promote_types(q.dtype, torch.float32))
        scores = scores + (q @ position_keys.transpose(-2, -1)).gather(-1, index)
        of_keys = (k @ position_queries.transpose(-2, -1)).gather(-1, index.transpose(-2, -1))
        scores = (scores + of_keys.transpose(-2, -1)).masked_fill(~visible, float("-inf"))
        weights = F.dropout(scores.softmax(-1), dropout)
        attended: Tensor = weights.to(v.dtype) @ v
        return attended


class _Convolution(nn.Module):
    """A convolution over the encoder's input, which is added to the output of the first layer."""

    def __init__(self, dim: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.conv = nn.Conv1d(dim, dim, kernel, padding=(kernel - 1) // 2)
        self.norm, self.dropout = nn.LayerNorm(dim, eps=EPS), dropout

    def forward(
        self, x: Float[Tensor, "B T D"], first: Float[Tensor, "B T D"], real: Bool[Tensor, "B T 1"]
    ) -> Float[Tensor, "B T D"]:
        mixed = self.conv(x.transpose(1, 2)).transpose(1, 2).masked_fill(~real, 0.0)
        mixed = F.gelu(F.dropout(mixed, self.dropout, self.training))
        normed: Tensor = self.norm(first + mixed)
        return normed.masked_fill(~real, 0.0)


@backbones.register("deberta", initialized_by_lab=True)
class Deberta(Backbone, nn.Module):
    """DeBERTa's encoder with the buckets of version 2 (He et al. 2021 and 2023): disentangled attention.

    Its weights map one to one onto those of transformers' DebertaV2Model. The defaults are those of DeBERTa-v3, whose
    heads are 64 wide. The token vectors are normalized here, so the lab's embeddings are bare.

    buckets             buckets of each direction: one for each distance up to half of them, then by logarithm
    max_distance        distance at which the last bucket begins; it also has all longer ones
    share_projections   True to project relative positions by the layers' keys and queries
    normalize_positions LayerNorm of the relative positions, once for all layers
    convolution         width of the kernel over the input that deberta-v2-xlarge has (3), 0 for none
    mask_decoder        True to run the last layer twice, with queries that begin as absolute positions plus the states
                        below: the enhanced mask decoder, which DeBERTa's generators have and transformers lacks
    """

    positions = "own"
    bare_embeddings = True
    own_heads = MappingProxyType({name: {"type": f"deberta_{name}"} for name in ("tokens", "replaced")})
    bucket_of: Int[Tensor, " distances"]

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        max_length: int,
        /,
        *,
        ff_mult: Annotated[float, Field(gt=0, le=1000)] = 4.0,
        buckets: Annotated[int, Field(ge=4, le=1 << 15)] = 256,
        max_distance: Annotated[int, Field(ge=4, le=1 << 16)] = 512,
        share_projections: bool = True,
        normalize_positions: bool = True,
        convolution: Annotated[int, Field(ge=0, le=99)] = 0,
        mask_decoder: bool = False,
        dropout: Share = 0.1,
        attention_dropout: Share = 0.1,
    ) -> None:
        super().__init__()
        self.dim, self.inner, self.buckets, self.max_distance = dim, round(dim * ff_mult), buckets, max_distance
        if self.inner < 1:
            raise ValueError(f"ff_mult {ff_mult} leaves the feed-forward no width at dim {dim}.")
        if max_distance <= buckets // 2 + 1:
            raise ValueError(f"max_distance {max_distance} must be above half of the {buckets} buckets, plus 1.")
        if convolution and not convolution % 2:
            raise ValueError(f"convolution {convolution} must be odd, or 0 for none.")
        self.embedding_norm = nn.LayerNorm(dim, eps=EPS)
        self.embedding_dropout = nn.Dropout(0.0)  # the lab sets it to embedding.dropout
        self.relative_positions = nn.Embedding(2 * buckets, dim)
        self.position_norm = nn.LayerNorm(dim, eps=EPS) if normalize_positions else None
        self.convolution = _Convolution(dim, convolution, dropout) if convolution else None
        self.absolute_positions = nn.Embedding(max_length, dim) if mask_decoder else None
        self.layers = nn.ModuleList()
        for _ in range(depth):
            rates = {"dropout": dropout, "attention_dropout": attention_dropout}
            self.layers.append(_Layer(dim, heads, self.inner, shares=share_projections, **rates))
        self.separates_documents = not convolution  # which mixes neighbours
        self.inner_states = not mask_decoder  # which needs the last layer
        numbers = [_bucket(distance, buckets, max_distance) for distance in range(max_distance + 1)]
        self.register_buffer("bucket_of", torch.tensor(numbers), persistent=False)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        attention_mask: Bool[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None = None,
        *,
        depths: Sequence[int] = (),
        detach: bool = False,
    ) -> Float[Tensor, "B T D"] | tuple[Float[Tensor, "B T D"], ...]:
        real = attention_mask.unsqueeze(-1)
        visible = visible_in(attention_mask, documents, blocks=False)
        positions, places = self.relative_positions.weight, self._places(x.shape[1], x)
        if self.position_norm is not None:
            positions = self.position_norm(positions)
        x = embedded = self.embedding_dropout(self.embedding_norm(x).masked_fill(~real, 0.0))
        decodes = self.absolute_positions is not None
        exits = Exits(depths, len(self.layers), detach)
        for depth, layer in enumerate(self.layers[:-1] if decodes else self.layers, 1):
            x = layer(x, visible, positions, places)
            if self.convolution is not None and depth == 1:
                x = self.convolution(embedded, x, real)
            x = exits.after(depth, x)
        if self.absolute_positions is not None:
            # Two passes of the last layer; keys and values are the states below it in both.
            row = torch.arange(x.shape[1], device=x.device)
            queries = x + self.absolute_positions(row if documents is None else within_documents(row, documents))
            for _ in range(2):
                queries = self.layers[-1](x, visible, positions, places, queries)
            x = queries
        return exits.result(x)

    def _places(self, length: int, x: Tensor) -> Places:
        """Return which rows of the table a length can reach, and the row of each distance among them."""
        last = len(self.relative_positions.weight) - 1
        cut = slice(0, last + 1) if torch.compiler.is_exporting() else self._reached(length)
        in_blocks = can_be_in_blocks(x)
        far = min(self.max_distance, length - 1)
        end = longest(length, far) if in_blocks else length - 1
        distances = torch.arange(-end, end + 1, device=x.device)
        buckets = distances.sign() * self.bucket_of[distances.abs().clamp(max=self.max_distance)]
        return Places((buckets + self.buckets).clamp(0, last) - cut.start, cut, far, in_blocks)

    def _reached(self, length: int) -> slice:
        """Return the rows of the table that the pairs of a row use."""
        farthest = _bucket(min(length - 1, self.max_distance), self.buckets, self.max_distance)
        return slice(max(self.buckets - farthest, 0), min(self.buckets + farthest + 1, 2 * self.buckets))

    def flops(self, length: int) -> int:
        """Per layer: four projections 8 T D^2, attention 4 T^2 D, positions 4 T R D for R rows of the table that the
        length reaches, feed-forward 4 T D F; a mask decoder runs the last layer once more.

        Training on a CPU multiplies by more rows instead of gathering, which does not count.
        """
        dim, cut = self.dim, self._reached(length)
        attention = 4 * length**2 * dim + 4 * length * (cut.stop - cut.start) * dim
        total: int = self._passes * (8 * length * dim**2 + attention + 4 * length * dim * self.inner)
        if self.convolution is not None:
            total += 2 * length * dim**2 * int(self.convolution.conv.kernel_size[0])
        return total

    def shared_flops(self, length: int) -> int:
        """Per layer, two projections of the R rows of the table: 4 R D^2."""
        cut = self._reached(length)
        total: int = self._passes * 4 * (cut.stop - cut.start) * self.dim**2
        return total

    @property
    def _passes(self) -> int:
        return len(self.layers) + (self.absolute_positions is not None)


def _bucket(distance: int, buckets: int, max_distance: int) -> int:
    """Return the bucket of a distance from 0 on: half of them have one each, the others share by logarithm."""
    half = buckets // 2
    if distance <= half:
        return distance
    return math.ceil(math.log(distance / half) / math.log((max_distance - 1) / half) * (half - 1)) + half
