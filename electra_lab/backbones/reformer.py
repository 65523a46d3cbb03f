"""reformer-pytorch's encoder: attention by locality-sensitive hashing."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from reformer_pytorch import reformer_pytorch as library
from torch import Tensor, nn

from electra_lab.backbones._hashing import Encoder
from electra_lab.backbones._windows import check_local_heads
from registry import Backbone, backbones


@contextmanager
def _at_least_bf16(device: str) -> Iterator[bool]:
    """Compute in float32 where autocast is to float16; yields whether it is.

    Keys are divided by their norm or 1e-12, which float16 rounds to 0, and keys of padding are 0.
    """
    narrow = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16
    with torch.autocast(device, enabled=False) if narrow else nullcontext():
        yield narrow


@backbones.register("reformer", initialized_by_lab=True)
class Reformer(Backbone, nn.Module):
    """Reformer encoder with LSH attention (Kitaev et al. 2020; reformer-pytorch).

    rotary       rotary positions (Su et al. 2021) in every layer, as reformer-pytorch's language model; without,
                 the lab adds learned positions. Hashing ignores rotary positions, attention within a bucket sees them
    bucket_size  positions that share a bucket; the lab pads the length to a multiple of twice that
    hashes       rounds of hashing; more are nearer to full attention, and cost in proportion
    local_heads  number of heads that do not hash, but see their window of 2 bucket_size positions and its two
                 neighbours
    memory       learned vectors that every hashed head may attend to, as well as the row (Sukhbaatar et al.
                 2019, "Augmenting self-attention with persistent memory"); a multiple of twice the bucket size
    glu          gated feed-forward (Shazeer 2020); adds half as many feed-forward weights again
    reversible   recomputation of all activations in the backward pass: memory that does not grow with depth,
                 for about a third more time a step. It excludes two forward passes before one backward pass
                 (the second overwrites the first's buckets), torch.compile, and frozen input embeddings; under
                 bf16 the recomputation runs in fp32. Off, as lengths up to 2,048 rarely need it.

    Padding takes no part: its tokens never matter. In training, the amount of padding changes which positions
    share a bucket, as the hash depends on the length, and hash rotations come from torch's global generator, which
    the lab seeds at every step. In eval a row is hashed at its own length, by rotations that depend on nothing else.

    Under fp16, which cannot hold the library's smallest divisor, the encoder computes in fp32.
    """

    discontinuous = True

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
        check_local_heads(local_heads, heads)
        if memory % (2 * bucket_size):
            raise ValueError(
                f"memory {memory} must be a multiple of twice bucket_size, here {2 * bucket_size}: "
                "it is hashed with the row, in whole pairs of buckets."
            )
        self.positions = "own" if rotary else "lab"
        with torch.device("cpu"):  # a check builds on the meta device, where the table needs torch's compiler
            self.rotary = library.FixedPositionalEmbedding(dim // heads) if rotary else None
        self.length_multiple = 2 * bucket_size
        self.dim, self.heads, self.bucket_size, self.hashes, self.ff_mult = dim, heads, bucket_size, hashes, ff_mult
        self.memory, self.glu, self.local_dim = memory, glu, dim // heads * local_heads
        self.reversible = reversible
        self.encoder = Encoder(
            dim, depth, heads, bucket_size=bucket_size, hashes=hashes, local_heads=local_heads, memory=memory,
            ff_mult=ff_mult, glu=glu, dropout=dropout, reverse=reversible,
        )  # fmt: skip
        self.norm = nn.LayerNorm(dim)  # reformer-pytorch leaves it to its language model

    @property
    def layers(self) -> nn.ModuleList:
        # Both lists of blocks hold the same modules; the library picks one by the length.
        blocks: nn.ModuleList = self.encoder.layers.irrev_blocks
        return blocks

    def forward(self, x: Float[Tensor, "B T D"], attention_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        x = x.masked_fill(~attention_mask.unsqueeze(-1), 0.0)
        with _at_least_bf16(x.device.type) as wide:
            x = x.float() if wide else x
            turn = None
            if self.rotary is not None:
                angles = torch.arange(x.shape[1], device=x.device).unsqueeze(1) * self.rotary.inv_freq
                turn = angles.cos(), angles.sin()
            if self.reversible and not torch.compiler.is_exporting():
                return self.norm(self.encoder(x, input_mask=attention_mask, turn=turn))  # type: ignore[no-any-return]
            first, second = x, x.view_as(x)  # the same tensor twice would be compiled separately
            for layer in self.layers:
                first, second = layer((first, second), input_mask=attention_mask, turn=turn)
            states: Tensor = self.norm((first + second) / 2)
        return states

    def at_step(self, seed: int, step: int) -> None:
        """Rotations follow torch's global generator, which is seeded from (seed, step) already."""

    def before_export(self, length: int) -> None:
        layers: Any = self.layers
        for layer in layers:
            layer.f.fn.lsh_attn.before_export(self.dim // self.heads, length, self.memory)

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
