"""reformer-pytorch's layers with the options that the lab sets, in fewer passes over memory.

The results are the library's up to rounding, except for padding in local heads: there, only keys are hidden.
Shapes: B rows of t positions, T with the memory; H heads of width d; R rounds, N rotations, C buckets of S positions.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from reformer_pytorch import reformer_pytorch as library
from reformer_pytorch import reversible
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from electra_lab.backbones._rotary import turned

Turn = tuple[Float[Tensor, "t half"], Float[Tensor, "t half"]]
Pair = tuple[Float[Tensor, "B t D"], Float[Tensor, "B t D"]]

EVALUATION_SEED = 0x5EED  # any constant: in eval the hash rotations must be the same for every call


class Encoder(nn.Module):
    """library.Reformer with the layers of this module; parameters have the library's names."""

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        *,
        bucket_size: int,
        hashes: int,
        local_heads: int,
        memory: int,
        ff_mult: int,
        glu: bool,
        dropout: float,
        reverse: bool,
    ) -> None:
        super().__init__()
        blocks = []
        for below in range(depth):
            attention = SelfAttention(
                dim, heads, bucket_size, hashes, dropout=dropout, post_attn_dropout=dropout,
                num_mem_kv=memory, n_local_attn_heads=local_heads, below=below,
            )  # fmt: skip
            feed_forward = library.FeedForward(dim, dropout=dropout, mult=ff_mult, glu=glu)
            feed_forward = library.Chunk(1, feed_forward, along_dim=-2)  # the library's 100 are slow at our lengths
            layers = library.PreNorm(nn.LayerNorm, dim, attention), library.PreNorm(nn.LayerNorm, dim, feed_forward)
            blocks.append(nn.ModuleList(layers))
        threshold = 0 if reverse else 1 << 62  # the length above which it runs reversibly
        self.layers = reversible.ReversibleSequence(blocks, reverse_thres=threshold, send_signal=True)
        self.layers.irrev_blocks = nn.ModuleList(Block(attends, feeds) for attends, feeds in blocks)

    def forward(self, x: Float[Tensor, "B t D"], **attends: Any) -> Float[Tensor, "B t D"]:
        """Run reversibly: both streams of states side by side."""
        first, second = self.layers(torch.cat([x, x], dim=-1), **attends).chunk(2, dim=-1)
        mean: Tensor = torch.stack((first, second)).mean(dim=0)
        return mean


class Block(reversible.IrreversibleBlock):  # type: ignore[misc]  # the library has no types
    """A layer that takes and returns the two streams of states as a pair, not joined in one tensor."""

    def forward(self, states: Pair, **attends: Any) -> Pair:
        """attends  keyword arguments of the attention"""
        first, second = states
        first = first + self.f(second, **attends)
        return first, second + self.g(first)


class SelfAttention(library.LSHSelfAttention):  # type: ignore[misc]
    """Attention by hashed and local heads, without copies of the states.

    All heads have rotary positions; the library gives them to hashed heads alone. Hashing ignores them.

    below  number of layers below this one
    """

    def __init__(self, dim: int, heads: int, bucket_size: int, hashes: int, *, below: int, **options: Any) -> None:
        super().__init__(dim, heads, bucket_size, hashes, **options)
        dropout = options["dropout"]
        self.lsh_attn = HashedAttention(bucket_size=bucket_size, n_hashes=hashes, dropout=dropout)
        self.lsh_attn.below = below
        self.local_attn = LocalAttention(2 * bucket_size, dropout=dropout, shared_qk=True, look_forward=1)

    def forward(
        self, x: Float[Tensor, "B t D"], input_mask: Bool[Tensor, "B t"], turn: Turn | None = None, **signal: Any
    ) -> Float[Tensor, "B t D"]:
        """turn    cosines and sines of the positions' angles
        signal  keyword arguments of the library's reversible core: `_reverse` and `_depth`
        """
        # Queries, which are the keys, and values of the row and the memory: [B H T d].
        rows, length, _ = x.shape
        local, mask = self.n_local_attn_heads, input_mask
        if self.num_mem_kv:
            x = torch.cat((x, self.mem_kv.expand(rows, -1, -1).to(x.dtype)), dim=1)
            mask = F.pad(mask, (0, self.num_mem_kv), value=True)
        qk, v = (projected.unflatten(-1, (self.heads, -1)).transpose(1, 2) for projected in (self.toqk(x), self.tov(x)))
        to_hash = qk[:, local:].detach().flatten(0, 1)
        if turn is not None:  # the memory has no positions
            placed = turned(qk[:, :, :length], *turn)
            qk = torch.cat((placed, qk[:, :, length:]), dim=2) if self.num_mem_kv else placed
        # Local heads come first: [B H T d] -> [BH T d] of either kind.
        heads = [local, self.heads - local]
        near_qk, qk = (part.flatten(0, 1) for part in torch.split(qk, heads, dim=1))
        near_v, v = (part.flatten(0, 1) for part in torch.split(v, heads, dim=1))
        mask = mask.unsqueeze(1).expand(-1, self.heads - local, -1).flatten(0, 1)
        attended = self.lsh_attn(to_hash, qk, v, mask, length, **signal).unflatten(0, (rows, -1))
        if local:
            near = self.local_attn(near_qk[:, :length], near_v[:, :length], input_mask)
            attended = torch.cat((near.unflatten(0, (rows, -1)), attended), dim=1)
        out: Tensor = self.post_attn_dropout(self.to_out(attended.transpose(1, 2).flatten(2)))
        return out


class LocalAttention(library.LocalAttention):  # type: ignore[misc]
    """Attention within a window and its two neighbours; queries are the keys.

    Hidden scores get a large negative number added, so that neither the softmax nor its gradient feels them, instead of
    being filled in copies.
    """

    def forward(
        self, query: Float[Tensor, "BH t d"], value: Float[Tensor, "BH t d"], input_mask: Bool[Tensor, "B t"]
    ) -> Float[Tensor, "BH t d"]:
        windows = (-1, query.shape[1] // self.window_size, self.window_size)  # [BH W S]
        queries, values = (vectors.reshape(*windows, vectors.shape[-1]) for vectors in (query, value))
        both = torch.cat((_unit(queries), values), dim=-1)
        # The first and the last window of a row are neighbours here, but hidden from each other.
        keys, values = torch.cat((both.roll(1, dims=1), both, both.roll(-1, dims=1)), dim=2).flatten(0, 1).chunk(2, -1)
        scores = torch.bmm((queries * query.shape[-1] ** -0.5).flatten(0, 1), keys.transpose(1, 2))
        near = F.pad(input_mask.reshape(windows), (0, 0, 1, 1), value=False)
        hidden = ~torch.cat((near[:, :-2], near[:, 1:-1], near[:, 2:]), dim=2)
        by_row = scores.view(input_mask.shape[0], -1, *hidden.shape[1:2], *scores.shape[1:])  # [B H W S A], A = 3 S
        by_row.add_(_lowest(hidden, scores)[:, None, :, None])
        _avoid_itself(scores, self.window_size)
        attention = self.dropout(scores.softmax(-1))
        return torch.bmm(attention, values).view_as(value)


class HashedAttention(library.LSHAttention):  # type: ignore[misc]
    """Attention within a bucket and the one before it, in one or more rounds of hashing.

    Positions are sorted once and gathered as whole vectors. A single round needs no weights of rounds.
    """

    below: int  # number of layers below this one
    rotations: Float[Tensor, "K d R N"]  # of rows of 1 to K pairs of buckets, in an export

    def forward(self, *inputs: Any, **signal: Any) -> Float[Tensor, "BH t d"]:
        if torch.compiler.is_exporting() and hasattr(self, "rotations"):
            return self._in_one_pass(*inputs)
        attended: Tensor = self._attended(*inputs, **signal) if self.training else self._by_length(*inputs)
        return attended

    def before_export(self, width: int, length: int, memory: int) -> None:
        """Draw the rotations of all rows up to a length, as a graph cannot draw those of `_by_length`.

        width  width of a head
        """
        pair = 2 * self.bucket_size
        most, extra = -(-length // pair), memory // pair
        rotations = torch.zeros(most, width, self.n_hashes, most + extra)
        for pairs in range(1, most + 1):
            rotations[pairs - 1, :, :, : pairs + extra] = self._rotations(width, pairs + extra)
        self.register_buffer("rotations", rotations, persistent=False)

    def _rotations(self, width: int, pairs: int, kind: torch.dtype = torch.float32) -> Float[Tensor, "d R N"]:
        """Draw the rotations of evaluation. They depend on the number of pairs of buckets and on the layer alone.

        On the CPU, so that all devices have the same ones.
        """
        generator = torch.Generator().manual_seed(EVALUATION_SEED)
        for _ in range(self.below + 1):
            drawn = torch.randn(width, self.n_hashes, pairs, dtype=kind, generator=generator)
        return drawn

    # Otherwise torch would compile once per number of rows. torch.compiler.disable would import the compiler here.
    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _by_length(
        self, to_hash: Tensor, qk: Tensor, v: Tensor, input_mask: Tensor, query_len: int
    ) -> Float[Tensor, "BH t d"]:
        """Cut each row to its length, in whole pairs of buckets, so that its neighbours do not matter."""
        places, pair = torch.arange(qk.shape[1], device=qk.device), 2 * self.bucket_size
        ends = (input_mask[:, :query_len] * (places[:query_len] + 1)).amax(-1).clamp(min=1)
        lengths = ends + -ends % pair  # [BH]
        whole = bool((lengths == query_len).all())
        attended = v[:, :query_len].clone()  # padding sees itself alone
        for length in [query_len] if whole else lengths.unique().tolist():
            rows = slice(None) if whole else lengths == length
            inside = slice(None) if whole else (places < length) | (places >= query_len)  # the row and the memory
            hashed, keys, values, real = (part[rows][:, inside] for part in (to_hash, qk, v, input_mask))
            rotations = self._rotations(qk.shape[2], keys.shape[1] // pair, qk.dtype).to(qk.device)
            attended[rows, :length] = self._attended(hashed, keys, values, real, length, rotations).to(v.dtype)
        return attended

    def _in_one_pass(
        self, to_hash: Tensor, qk: Tensor, v: Tensor, input_mask: Tensor, query_len: int
    ) -> Float[Tensor, "BH t d"]:
        """Do the same as `_by_length` for rows of all lengths at once: positions behind the end of a row come last."""
        length, rounds, pair = qk.shape[1], self.n_hashes, 2 * self.bucket_size
        places, memory = torch.arange(length, device=qk.device), (length - query_len) // pair
        ends = (input_mask[:, :query_len] * (places[:query_len] + 1)).amax(-1).clamp(min=1)
        pairs = (ends + pair - 1) // pair  # [BH]
        inside = (places < (pairs * pair).unsqueeze(1)) | (places >= query_len)  # [BH T], the row and the memory

        # Hash each row by the rotations for its length.
        rotated = torch.einsum("btf,bfhi->bhti", to_hash, self.rotations[pairs - 1])
        number = self.rotations.shape[-1]
        absent = torch.arange(number, device=qk.device) >= (pairs + memory).unsqueeze(1)  # [BH N]
        lowest = torch.zeros_like(absent, dtype=qk.dtype).masked_fill(absent, -torch.finfo(qk.dtype).max)
        buckets = (torch.cat((rotated, -rotated), dim=-1) + lowest.repeat(1, 2)[:, None, None]).argmax(-1)  # [BH R T]

        # Sort by round, bucket and position.
        buckets = buckets + 2 * number * torch.arange(rounds, device=qk.device).unsqueeze(1)
        buckets = torch.where(inside.unsqueeze(1), buckets, 2 * number * rounds)
        order = (length * buckets + places).flatten(1).argsort(-1)
        last = rounds * 2 * (pairs + memory) - 1  # bucket of each row
        return self._within(order, qk, v, input_mask, query_len, last)

    def _attended(
        self,
        to_hash: Float[Tensor, "BH T d"],
        qk: Float[Tensor, "BH T d"],
        v: Float[Tensor, "BH T d"],
        input_mask: Bool[Tensor, "BH T"],
        query_len: int,
        rotations: Float[Tensor, "d R N"] | None = None,
        _reverse: bool = False,
        _depth: int | None = None,
    ) -> Float[Tensor, "BH t d"]:
        """rotations  rotations of evaluation; by default the library draws others at every call"""
        length = qk.shape[1]
        number = length // self.bucket_size
        if rotations is None:
            options = {"key_namespace": _depth, "fetch": _reverse, "set_cache": self.training}
            buckets = self.hash_vectors(number, to_hash, **options)
        else:
            rotated = torch.einsum("btf,bfhi->bhti", to_hash, rotations.expand(len(to_hash), -1, -1, -1))
            buckets = torch.cat((rotated, -rotated), dim=-1).argmax(-1)  # [BH R T]
            buckets = (buckets + number * torch.arange(self.n_hashes, device=qk.device).unsqueeze(1)).flatten(1)
        # [BH M], M = rounds * T; bucket numbers of different rounds differ
        positions = torch.arange(length, device=qk.device).repeat(self.n_hashes)
        order = (length * buckets + positions).argsort(-1)  # by bucket and position
        return self._within(order, qk, v, input_mask, query_len)

    def _within(
        self,
        order: Int[Tensor, "BH M"],
        qk: Float[Tensor, "BH T d"],
        v: Float[Tensor, "BH T d"],
        input_mask: Bool[Tensor, "BH T"],
        query_len: int,
        last: Int[Tensor, " BH"] | None = None,
    ) -> Float[Tensor, "BH t d"]:
        """Attend within buckets of sorted positions; `last` is that of `_with_previous`."""
        (rows, length, dim), size, rounds = qk.shape, self.bucket_size, self.n_hashes
        # Sort: C buckets of S positions over all rounds, C S = M.
        positions = torch.arange(length, device=qk.device).repeat(rounds)
        places = positions[order]  # [BH M]
        in_buckets = (rows, rounds * length // size, size)  # [BH C S]
        queries, values = _chosen(torch.cat((qk, v), dim=-1), places).view(*in_buckets, 2 * dim).chunk(2, dim=-1)

        # Score: each bucket against itself and the one before it, [BH C S d] -> [BH C S 2S].
        keys = _with_previous(torch.cat((_unit(queries), values), dim=-1), last)
        keys, values = keys.flatten(0, 1).chunk(2, dim=-1)
        scores = torch.bmm(queries.flatten(0, 1) * dim**-0.5, keys.transpose(1, 2)).view(*in_buckets, 2 * size)
        hidden = _with_previous(~input_mask.gather(1, places).view(in_buckets), last)
        scores.add_(_lowest(hidden, scores).unsqueeze(2))
        if rounds == 1:
            _avoid_itself(scores, 0)
        else:  # a position may also be in the last bucket of the round before
            same = places.view(*in_buckets, 1) == _with_previous(places.view(in_buckets), last).unsqueeze(-2)
            scores.detach().masked_fill_(same, library.TOKEN_SELF_ATTN_VALUE)

        # Attend, and undo the sort: [BH C S d] -> [BH M d] by round and position.
        sorted_places = torch.arange(rounds * length, device=qk.device).expand_as(order)
        back = torch.empty_like(order).scatter_(1, order, sorted_places)
        attention = self.dropout(scores.softmax(-1)).flatten(0, 1)
        attended = _chosen(torch.bmm(attention, values).view(rows, -1, dim), back)

        # Average over rounds, each weighted by the sum of its attention scores: [BH M d] -> [BH T d].
        if rounds > 1:
            seen = scores.logsumexp(-1).view(rows, -1).gather(1, back).view(rows, rounds, length, 1)
            attended = (attended.view(rows, rounds, length, dim) * seen.softmax(1)).sum(1)
        # A position of padding sees itself alone, so all padding has one state and shares buckets in the next layer.
        real = input_mask[:, :query_len].unsqueeze(-1)
        return torch.where(real, attended[:, :query_len], v[:, :query_len].to(attended.dtype))


class _Unit(torch.autograd.Function):
    """F.normalize over the last dimension, with a third of the passes over memory in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Float[Tensor, "*N d"]) -> Float[Tensor, "*N d"]:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min_(1e-12)
        unit: Tensor = (x / norm).to(x.dtype)
        ctx.save_for_backward(unit, norm)
        return unit

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "*N d"]) -> Float[Tensor, "*N d"]:
        unit, norm = ctx.saved_tensors
        along = (gradient * unit).sum(-1, keepdim=True)
        return torch.addcmul(gradient, unit, along, value=-1).div_(norm)


def _unit(vectors: Float[Tensor, "*N d"]) -> Float[Tensor, "*N d"]:
    unit: Tensor = _Unit.apply(vectors)  # type: ignore[no-untyped-call]
    return unit


def _avoid_itself(scores: Float[Tensor, "*N S A"], first: int) -> None:
    """Keep positions, in place, from attending to themselves unless they see no other.

    Either way no gradient passes through the replaced score, so autograd need not know.

    first  number of the key that is the first position
    """
    if torch.compiler.is_exporting():  # graphs of ONNX cannot change a part of a tensor
        queries, keys = (torch.arange(number, device=scores.device) for number in scores.shape[-2:])
        scores.masked_fill_(keys == queries.unsqueeze(1) + first, library.TOKEN_SELF_ATTN_VALUE)
        return
    scores.detach().diagonal(first, -2, -1).fill_(library.TOKEN_SELF_ATTN_VALUE)


def _lowest(hidden: Bool[Tensor, "*N"], scores: Float[Tensor, "*M"]) -> Float[Tensor, "*N"]:
    """Return a bias of the scores' type: its lowest number where hidden, 0 elsewhere."""
    bias = torch.zeros_like(hidden, dtype=scores.dtype)
    return bias.masked_fill_(hidden, -torch.finfo(scores.dtype).max)


def _chosen(x: Float[Tensor, "N T d"], places: Int[Tensor, "N M"]) -> Float[Tensor, "N M d"]:
    """Return the vectors of each row at its places."""
    firsts = torch.arange(0, x.shape[0] * x.shape[1], x.shape[1], device=x.device).unsqueeze(1)
    return x.reshape(-1, x.shape[-1]).index_select(0, (places + firsts).flatten()).view(*places.shape, x.shape[-1])


def _with_previous(
    buckets: Shaped[Tensor, "N C S *d"], last: Int[Tensor, " N"] | None = None
) -> Shaped[Tensor, "N C A *d"]:
    """Return each bucket and the one before it; before the first comes the last, or of each row the bucket `last`."""
    previous = buckets.roll(1, dims=1)
    if last is not None:
        first = buckets[torch.arange(last.shape[0], device=last.device), last]
        previous = torch.cat((first.unsqueeze(1), previous[:, 1:]), dim=1)
    return torch.cat((buckets, previous), dim=2)
