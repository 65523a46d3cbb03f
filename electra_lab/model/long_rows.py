"""Attention in long rows: documents apart, each by itself, and dropout that keeps a bit for each weight."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped, UInt8
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from electra_lab.model.network import computed

# Shapes: B rows, H heads, T queries and S keys, of width d, values of width e; n positions of a block, N sequences.
Mask = Shaped[Tensor, " B #H #T S"]  # True at the keys that a query sees, or numbers to add to its scores

SHORT = 256  # positions; on a CPU, shorter rows are attended to at once, whatever the mask and the dropout
JOINED = 64  # positions; shorter documents that follow one another share a block
QUERIES = 128  # size of a block of queries where attention weights are dropped
# What FlashAttention can do on all devices that have it
FLASH_TYPES = (torch.float16, torch.bfloat16)
FLASH_WIDTH = 192  # of a head at most, and a multiple of 8
FLASH_SEQUENCES = 65_535  # a dimension of the grid
FLASH_BEYOND = 512  # positions; up to this many, a mask is as fast (an H200, docs/performance.md)
WINDOWS = torch.__version__ >= "2.11"  # whether varlen_attn has them


@dataclass(frozen=True, eq=False)
class Blocks:
    """Rows as blocks of neighbouring positions that see nothing outside: a long document each, or several short ones.

    sizes  numbers of positions of the blocks, row after row
    masks  masks of the blocks, Bool[1 1 #n n]; None if all positions of a block see one another
    """

    attention_mask: Bool[Tensor, "B T"]
    documents: Int[Tensor, "B T"]
    sizes: list[int]
    masks: list[Bool[Tensor, "1 1 _ n"] | None]


@dataclass(frozen=True, eq=False)
class Sequences:
    """All rows as sequences that see nothing outside, one after the other: documents or rows, and padding.

    begins  first position of each sequence in [B*T], then B*T up to the largest number of sequences, and once more
    reach   largest distance that a position sees, None for its whole sequence
    """

    attention_mask: Bool[Tensor, "B T"]
    documents: Int[Tensor, "B T"] | None
    begins: Int[Tensor, " N"]
    reach: int | None = None


@contextmanager
def documents_at_most(
    counts: Int[Tensor, " B"] | None, backbones: Sequence[Any], device: torch.device, length: int
) -> Iterator[None]:
    """Set `most_documents` of backbones, which they pass to `visible_in`: the host must not ask the device for it.

    It is None outside the block, without counts, and where rows of this length have a mask.

    counts  largest numbers of documents and pieces of padding of the rows, on the CPU; their sum is rounded up to a
            power of two, as compiled code is for one number
    length  number of positions of a row
    """
    limit = None
    if counts is not None and len(counts) and length > FLASH_BEYOND and _has_flash(device):
        limit = 1 << (int(counts.sum()) - 1).bit_length()
    for backbone in backbones:
        backbone.most_documents = limit
    try:
        yield
    finally:
        for backbone in backbones:
            backbone.most_documents = None


def documents_apart(
    attention_mask: Bool[Tensor, "B T"], documents: Int[Tensor, "B T"] | None, most: int | None
) -> Blocks | Sequences | None:
    """Return the documents of long rows; None if a mask is as fast, or if a document continues after another one.

    documents  None if all of a row is one document, perhaps with padding
    most       upper bound of documents and pieces of padding in all rows, where a device has a kernel for sequences
    """
    length = attention_mask.shape[1]
    if most is not None and most <= FLASH_SEQUENCES and length > FLASH_BEYOND:
        return sequences_of(attention_mask, documents, most)
    if documents is not None and length > SHORT and _is_eager_on_cpu(documents) and _has_values(documents):
        return _blocks(attention_mask, documents)
    return None


def drops_in_parts(query: Float[Tensor, "B H T d"], key: Float[Tensor, "B H S d"]) -> bool:
    """Return True if `drop_in_parts` is to drop weights: for more than SHORT keys, in an eager pass on a CPU."""
    return key.shape[2] > SHORT and _is_eager_on_cpu(query)


def reads_sequences(
    query: Float[Tensor, "B H T d"], value: Float[Tensor, "B H T e"], dropout: float, kernel: object
) -> bool:
    """Return True if torch's varlen_attn computes this: in half precision, without dropout."""
    width = query.shape[-1]
    fits = width == value.shape[-1] and width % 8 == 0 and width <= FLASH_WIDTH
    return kernel == "fused" and not dropout and fits and computed(value) in FLASH_TYPES


def _is_eager_on_cpu(x: Tensor) -> bool:
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return x.device.type == "cpu" and not traced


def _has_values(x: Tensor) -> bool:
    """Return False for a tensor that has only its shape, by which a dry run forecasts memory."""
    return type(x) is Tensor


def _has_flash(device: torch.device) -> bool:
    """Return True if torch's varlen_attn runs on a device, NVIDIA's from Ampere on, in the type of autocast."""
    if device.type != "cuda" or not torch.is_autocast_enabled("cuda"):
        return False
    built = torch.version.cuda is not None and torch.backends.cuda.is_flash_attention_available()
    narrow = torch.get_autocast_dtype("cuda") in FLASH_TYPES
    return built and narrow and torch.cuda.get_device_capability(device) >= (8, 0)


def sequences_of(attention_mask: Bool[Tensor, "B T"], documents: Int[Tensor, "B T"] | None, most: int) -> Sequences:
    """Find the runs of equal numbers within a row, and of padding, without a size that depends on their number."""
    run = runs_of(attention_mask, documents)
    torch._assert_async(run[-1] <= most, f"these rows have more documents than their batch says, {most} at most")
    numbers = torch.arange(1, most + 2, device=run.device)
    return Sequences(attention_mask, documents, torch.searchsorted(run, numbers, out_int32=True))


def runs_of(attention_mask: Bool[Tensor, "B T"], documents: Int[Tensor, "B T"] | None) -> Int[Tensor, " N"]:
    """Return the number of each position's document or piece of padding, counted from 1 over all rows."""
    new = attention_mask[:, 1:] != attention_mask[:, :-1]
    if documents is not None:
        new = new | (documents[:, 1:] != documents[:, :-1])
    return F.pad(new, (1, 0), value=True).flatten().cumsum(0)


def by_sequence(
    query: Float[Tensor, "B H T d"],
    key: Float[Tensor, "B H T d"],
    value: Float[Tensor, "B H T d"],
    sequences: Sequences,
) -> Float[Tensor, "B H T d"]:
    from torch.nn.attention.varlen import varlen_attn  # imports torch's compiler, which takes seconds

    batch, heads, length, width = query.shape
    q, k, v = (  # [B H T d] -> [B*T H d]
        x.to(computed(value)).transpose(1, 2).reshape(batch * length, heads, width) for x in (query, key, value)
    )
    near: dict[str, Any] = {} if sequences.reach is None else {"window_size": (sequences.reach, sequences.reach)}
    attended: Any = varlen_attn(q, k, v, sequences.begins, sequences.begins, length, length, **near)
    output: Tensor = attended.view(batch, length, heads, width).transpose(1, 2)
    return output


def _blocks(attention_mask: Bool[Tensor, "B T"], documents: Int[Tensor, "B T"]) -> Blocks | None:
    """Return None if there are no rows, or if a document of a row continues after another one."""
    rows, length = documents.shape
    numbers, real = documents.flatten(), attention_mask.flatten()
    # Runs of equal numbers within a row, by their first positions in [B*T]
    new = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
    begins = new.flatten().nonzero().flatten()
    runs = torch.stack([begins // length, numbers[begins]])
    if not rows or torch.unique(runs, dim=1).shape[1] < runs.shape[1]:
        return None
    # Join short documents with those before them, as a product for each would cost more than it saves
    blocks: list[tuple[int, int, bool]] = []  # first position, end, True for several documents
    ends = [*begins[1:].tolist(), rows * length]
    for begin, end in zip(begins.tolist(), ends, strict=True):
        joins = begin % length and end - blocks[-1][0] <= JOINED
        blocks.append((blocks.pop()[0], end, True) if joins else (begin, end, False))
    # Mask padding and other documents; a block without either needs no mask
    masks: list[Tensor | None] = []
    for begin, end, several in blocks:
        keys, number = real[begin:end], numbers[begin:end]
        visible = keys[None]
        if several:
            visible = visible & (number[:, None] == number)
        whole = not several and bool((keys == keys[0]).all())  # all real, or all padding
        masks.append(None if whole else (visible | ~visible.any(-1, keepdim=True))[None, None])
    return Blocks(attention_mask, documents, [end - begin for begin, end, _ in blocks], masks)


def drop_in_parts(
    query: Float[Tensor, "B H T d"],
    key: Float[Tensor, "B H S d"],
    value: Float[Tensor, "B H S e"],
    visible: Mask | None,
    dropout: float,
) -> Float[Tensor, "B H T e"]:
    """Attend with dropout, keeping one bit for each weight; in the type of autocast, as torch's kernel does."""
    kind = computed(value)
    with torch.autocast("cpu", enabled=False):
        inputs = query.to(kind), key.to(kind), value.to(kind)
        attended: Tensor = _Dropped.apply(*inputs, visible, dropout)  # type: ignore[no-untyped-call]
    return attended


class _Dropped(torch.autograd.Function):
    """The weights of some queries of one row exist at a time, and the backward pass computes them again.

    Dropout is drawn from torch's global generator, row after row, in the forward pass alone.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Float[Tensor, "B H T d"],
        key: Float[Tensor, "B H S d"],
        value: Float[Tensor, "B H S e"],
        visible: Mask | None,
        dropout: float,
    ) -> Float[Tensor, "B H T e"]:
        q, k, v = query.contiguous(), key.contiguous(), value.contiguous()
        attended = q.new_empty(*q.shape[:3], v.shape[-1])
        bits = q.new_empty(*q.shape[:3], -(-k.shape[2] // 8), dtype=torch.uint8)
        for row, part in _parts(q):
            weights = _weights(q[row, :, part], k[row], _of(visible, row, part))
            keep = _keep_mask(weights, dropout)
            if _has_values(keep):
                bits[row, :, part] = torch.from_numpy(np.packbits(keep.numpy(), axis=-1))
            attended[row, :, part] = torch.bmm(weights.mul_(keep).to(v.dtype), v[row])
        ctx.save_for_backward(query, key, value, visible, bits)
        ctx.grow = 1 / (1 - dropout)
        return attended.mul_(ctx.grow)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "B H T e"]) -> tuple[Tensor | None, ...]:
        query, key, value, visible, bits = ctx.saved_tensors
        q, k, v, g = query.contiguous(), key.contiguous(), value.contiguous(), gradient * ctx.grow
        scale, wide = q.shape[-1] ** -0.5, torch.promote_types(q.dtype, torch.float32)
        of_q, of_k, of_v = torch.empty_like(q), torch.zeros_like(k, dtype=wide), torch.zeros_like(v, dtype=wide)
        for row, part in _parts(q):
            queries, of_attended = q[row, :, part], g[row, :, part]
            weights = _weights(queries, k[row], _of(visible, row, part))
            keep = _unpacked(bits[row, :, part], weights)
            # From the result to weights, scores, queries and keys
            of_weights = torch.bmm(of_attended, v[row].transpose(1, 2)).to(wide).mul_(keep)
            of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, wide).to(q.dtype)
            of_q[row, :, part] = torch.bmm(of_scores, k[row]).mul_(scale)
            of_k[row] += torch.bmm(of_scores.transpose(1, 2), queries * scale)
            of_v[row] += torch.bmm(weights.mul_(keep).to(v.dtype).transpose(1, 2), of_attended)
        return of_q, of_k.to(k.dtype), of_v.to(v.dtype), None, None


def _parts(query: Float[Tensor, "B H T d"]) -> Iterator[tuple[int, slice]]:
    """Yield the numbers of a row and of some of its queries; of shapes alone the first, as the others are like it."""
    for row in range(query.shape[0]):
        for begin in range(0, query.shape[2], QUERIES):
            yield row, slice(begin, begin + QUERIES)
            if not _has_values(query):
                return


def _of(visible: Shaped[Tensor, "_ _ _ S"] | None, row: int, part: slice) -> Shaped[Tensor, "_ _ S"] | None:
    """Return the mask of some queries of a row."""
    if visible is None:
        return None
    return visible[row] if visible.shape[2] == 1 else visible[row, :, part]


def _weights(
    query: Float[Tensor, "H n d"], key: Float[Tensor, "H S d"], visible: Shaped[Tensor, "_ _ S"] | None
) -> Float[Tensor, "H n S"]:
    """Return the softmax of the scores, in float32 at least."""
    scores = torch.bmm(query * query.shape[-1] ** -0.5, key.transpose(1, 2))
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if visible is not None:
        scores += torch.where(visible, 0.0, float("-inf")) if visible.dtype == torch.bool else visible
    return torch.softmax(scores, -1, out=scores)


def _keep_mask(weights: Float[Tensor, "H n S"], dropout: float) -> Bool[Tensor, "H n S"]:
    """Draw the weights to keep: 32 bits each, two of them from a number of 64 bits, faster than by bernoulli_."""
    count = weights.numel()
    words = torch.empty(-(-count // 2), dtype=torch.int64).random_(-(2**63), None).view(torch.int32)
    lowest = min(round(dropout * 2**32) - 2**31, 2**31 - 1)
    return (words[:count] >= lowest).view_as(weights)


def _unpacked(bits: UInt8[Tensor, "H n bytes"], weights: Float[Tensor, "H n S"]) -> UInt8[Tensor, "H n S"]:
    if not _has_values(bits):
        return torch.empty_like(weights, dtype=torch.uint8)
    return torch.from_numpy(np.unpackbits(bits.numpy(), axis=-1, count=weights.shape[-1]))
