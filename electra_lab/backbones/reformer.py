"""reformer-pytorch's encoder: attention by locality-sensitive hashing."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Shaped
from pydantic import Field
from reformer_pytorch import reformer_pytorch as library
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.backbones._rotary import turned
from registry import backbones

EVALUATION_SEED = 0x5EED  # any constant: in eval the hash rotations must be the same for every call


class _LocalAttention(library.LocalAttention):  # type: ignore[misc]  # the library has no types
    """The library's attention within windows, with the positions that it gives to hashed heads alone.

    States of real positions are the library's up to rounding, in less time: hidden scores get a large negative number
    added, so that neither the softmax nor its gradient feels them, instead of being filled in copies.
    """

    def __init__(self, bucket_size: int, dropout: float, rotary: nn.Module | None) -> None:
        super().__init__(2 * bucket_size, dropout=dropout, shared_qk=True, look_forward=1)
        self.rotary = rotary

    def forward(
        self,
        query: Float[Tensor, "BH T d"],
        key: Float[Tensor, "BH T d"],
        value: Float[Tensor, "BH T d"],
        input_mask: Bool[Tensor, "B T"],
    ) -> Float[Tensor, "BH T d"]:
        if self.rotary is not None:
            sine, cosine = self.rotary(query).float().chunk(2, dim=-1)
            query = turned(query, cosine, sine)  # query and key are the same
        windows = (-1, query.shape[1] // self.window_size, self.window_size)  # [BH W S]
        queries, keys, values = (each.reshape(*windows, each.shape[-1]) for each in (query, query, value))
        queries, keys = queries * queries.shape[-1] ** -0.5, F.normalize(keys, dim=-1).to(keys.dtype)
        keys, values = _with_neighbours(keys, -1.0), _with_neighbours(values, -1.0)
        scores = torch.bmm(queries.flatten(0, 1), keys.flatten(0, 1).transpose(1, 2))
        hidden = ~_with_neighbours(input_mask.reshape(windows), False)
        by_row = scores.view(len(input_mask), -1, *hidden.shape[1:2], *scores.shape[1:])  # [B H W S A], A = 3 S
        padding = torch.zeros_like(hidden, dtype=scores.dtype).masked_fill_(hidden, -torch.finfo(scores.dtype).max)
        by_row.add_(self._itself(scores)).add_(padding[:, None, :, None])
        attention = self.dropout(scores.softmax(-1))
        return torch.bmm(attention, values.flatten(0, 1)).view_as(value)

    def _itself(self, scores: Float[Tensor, "N S A"]) -> Float[Tensor, "S A"]:
        """Return what hides a position from itself, as long as it sees another one."""
        bias = torch.zeros_like(scores[0])
        bias.diagonal(self.window_size).fill_(library.TOKEN_SELF_ATTN_VALUE)
        return bias


@contextmanager
def _at_least_bf16(device: str) -> Iterator[bool]:
    """Compute in float32 where autocast is to float16; yields whether it is.

    The library divides keys by their norm or 1e-12, which float16 rounds to 0, and keys of padding are 0.
    """
    narrow = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16
    with torch.autocast(device, enabled=False) if narrow else nullcontext():
        yield narrow


def _with_neighbours(windows: Shaped[Tensor, "N W S *d"], beyond: float) -> Shaped[Tensor, "N W A *d"]:
    """Return each window between the one before it and the one after it; `beyond` stands outside of the row."""
    around = F.pad(windows, (*((0, 0) * (windows.dim() - 2)), 1, 1), value=beyond)
    return torch.cat((around[:, :-2], around[:, 1:-1], around[:, 2:]), dim=2)


@backbones.register("reformer")
class Reformer(nn.Module):
    """Reformer encoder with LSH attention (Kitaev et al. 2020; reformer-pytorch).

    rotary       rotary positions (Su et al. 2021) in every layer, as reformer-pytorch's language model; without,
                 the lab adds learned positions. Hashing ignores rotary positions, attention within a bucket sees them
    bucket_size  positions that share a bucket; the lab pads the length to a multiple of twice that
    hashes       rounds of hashing; more are nearer to full attention, and cost in proportion
    local_heads  how many of the heads, instead of hashing, see their window of 2 bucket_size positions and the two
                 beside it: neighbours for certain, and nothing far
    memory       learned vectors that every hashed head may attend to, beside the row's own positions (Sukhbaatar et al.
                 2019, "Augmenting self-attention with persistent memory"); a multiple of twice the bucket size
    glu          gated feed-forward (Shazeer 2020); adds half as many feed-forward weights again
    reversible   keep no activations and recompute them in the backward pass: memory that does not grow with depth,
                 for about a third more time a step. It excludes two forward passes before one backward pass
                 (the second overwrites the first's buckets), torch.compile, and frozen input embeddings; under
                 bf16 the recomputation runs in fp32. Off, as lengths up to 2,048 rarely need it.

    Padding takes no part: what it holds never matters. How much of it there is changes which positions share a
    bucket, as the hash depends on the length. Hash rotations come from torch's global generator, which the lab
    seeds at every step; in eval they are constant.

    Under fp16, which cannot hold the library's smallest divisor, the encoder computes in fp32.
    """

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        max_length: int,
        /,
        *,
        rotary: bool = True,
        bucket_size: Annotated[int, Field(ge=1, le=1 << 24)] = 64,
        hashes: Annotated[int, Field(ge=1, le=1000)] = 4,
        local_heads: Annotated[int, Field(ge=0, le=65_536)] = 0,
        memory: Annotated[int, Field(ge=0, le=65_536)] = 0,
        ff_mult: Annotated[int, Field(ge=1, le=1000)] = 4,
        glu: bool = False,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1,
        reversible: bool = False,
    ) -> None:
        super().__init__()
        if rotary and (dim // heads) % 2:
            raise ValueError(f"rotary positions need an even head width; dim {dim} / heads {heads} is {dim // heads}.")
        if local_heads >= heads:
            raise ValueError(
                f"local_heads {local_heads} must be below heads {heads}: one head at least has to hash, "
                "as local heads see nothing far."
            )
        if memory % (2 * bucket_size):
            raise ValueError(
                f"memory {memory} must be a multiple of twice bucket_size, here {2 * bucket_size}: "
                "it is hashed with the row, in whole pairs of buckets."
            )
        self.positions = "own" if rotary else "lab"
        self.rotary = library.FixedPositionalEmbedding(dim // heads) if rotary else None
        self.length_multiple = 2 * bucket_size
        self.dim, self.bucket_size, self.hashes, self.ff_mult = dim, bucket_size, hashes, ff_mult
        self.memory, self.glu, self.local_dim = memory, glu, dim // heads * local_heads
        self.reversible = reversible
        self.encoder = library.Reformer(
            dim,
            depth,
            heads,
            bucket_size=bucket_size,
            n_hashes=hashes,
            n_local_attn_heads=local_heads,
            num_mem_kv=memory,
            ff_chunks=1,  # the library's 100 are slow at our lengths
            ff_mult=ff_mult,
            ff_glu=glu,
            lsh_dropout=dropout,
            ff_dropout=dropout,
            post_attn_dropout=dropout,
            reverse_thres=0 if reversible else 1 << 62,  # the length above which it runs reversibly
        )
        if local_heads:
            for module in self.encoder.modules():
                if isinstance(module, library.LSHSelfAttention):
                    module.local_attn = _LocalAttention(bucket_size, dropout, self.rotary)
        self.norm = nn.LayerNorm(dim)  # reformer-pytorch leaves it to its language model

    @property
    def layers(self) -> nn.ModuleList:
        # Both lists of blocks hold the same modules; the library picks one by the length.
        blocks: nn.ModuleList = self.encoder.layers.irrev_blocks
        return blocks

    def forward(self, x: Float[Tensor, "B T D"], attention_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        x = x.masked_fill(~attention_mask.unsqueeze(-1), 0.0)
        if self.training:
            return self._encode(x, attention_mask)
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            torch.manual_seed(EVALUATION_SEED)
            return self._encode(x, attention_mask)

    def _encode(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        with _at_least_bf16(x.device.type) as wide:
            x = x.float() if wide else x
            angles = self.rotary(x) if self.rotary is not None else None
            states: Tensor = self.norm(self.encoder(x, input_mask=attention_mask, pos_emb=angles))
        return states

    def at_step(self, seed: int, step: int) -> None:
        """Rotations follow torch's global generator, which is seeded from (seed, step) already."""

    def flops(self, length: int) -> int:
        """Per layer, with M memory vectors, N = T + M, L of the D columns in local heads, R rounds of hashing over
        buckets of S: projections of keys and values 4 N D^2 and of the output 2 T D^2; hashing R N (D - L) (N/S);
        attention over 2S keys a round 8 R N S (D - L), over a local head's 6S keys 24 T S L; feed-forward 4 T D F
        (6 T D F with GLU)."""
        t, d, s, r = length, self.dim, self.bucket_size, self.hashes
        n, hashed = t + self.memory, self.dim - self.local_dim
        attention = r * n * hashed * (n // s) + 8 * r * n * s * hashed + 24 * t * s * self.local_dim
        layer = 4 * n * d * d + 2 * t * d * d + attention + (6 if self.glu else 4) * t * d * d * self.ff_mult
        return len(self.layers) * layer
