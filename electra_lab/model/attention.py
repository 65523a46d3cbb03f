"""Exact softmax attention by one of several kernels. Which is faster depends on the machine, the type, the length."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.model.long_rows import (
    Blocks,
    Mask,
    Sequences,
    by_sequence,
    documents_apart,
    drop_in_parts,
    drops_in_parts,
    reads_sequences,
)


@dataclass(frozen=True)
class Softcap:
    """Products whose scores s are bounded to c tanh(s / c) before the softmax (Gemma Team 2024)."""

    bound: float


Kernel = Literal["fused", "products"] | Softcap
KERNELS: tuple[Kernel, ...] = ("fused", "products")  # that compute the same

Visible = Mask | Blocks | Sequences | None


def visible_in(
    attention_mask: Bool[Tensor, "B T"],
    documents: Int[Tensor, "B T"] | None = None,
    *,
    blocks: bool = True,
    most: int | None = None,
) -> Any:
    """Return which positions each position sees, for `attend`: the real ones of its row, or of its document there.

    A position without any, in padding, sees arbitrary ones, as the softmax of nothing is NaN.

    blocks  allow Blocks or Sequences instead of a mask Bool[B 1 #T T], for long rows. Only an eager forward pass on a
            CPU has Blocks: their number depends on the documents
    most    documents and pieces of padding in all rows, from `documents_at_most`: a device with a kernel for sequences
            gets Sequences. No document continues after another one
    """
    if blocks and documents is not None:
        apart = documents_apart(attention_mask, documents, most)
        if apart is not None:
            return apart
    return _mask(attention_mask, documents)


def attend(
    query: Float[Tensor, "B H T d"],
    key: Float[Tensor, "B H S d"],
    value: Float[Tensor, "B H S e"],
    visible: Visible,
    dropout: float,
    kernel: Kernel,
) -> Float[Tensor, "B H T e"]:
    """softmax(q k / sqrt(d)) v, with dropout on the weights. Every row of a mask needs a position.

    visible  a mask, what `visible_in` returned, or None if every query sees every key
    kernel   fused: torch's scaled_dot_product_attention; products: two batched matrix products with a softmax in
             between, which keep the matrix of weights for the backward pass. On a CPU, neither drops weights where
             `drops_in_parts`: torch's kernel would also keep all of them. Sequences become a mask, unless
             `reads_sequences`
    """
    if isinstance(visible, Sequences):
        if reads_sequences(query, value, dropout, kernel):
            return by_sequence(query, key, value, visible)
        assert visible.reach is None, "the caller asks whether there is a kernel for it"
        visible = _mask(visible.attention_mask, visible.documents)
    if isinstance(visible, Blocks):
        if not torch.compiler.is_compiling():
            return _by_block(query, key, value, visible, dropout, kernel)
        visible = _mask(visible.attention_mask, visible.documents)
    capped = isinstance(kernel, Softcap)
    if dropout and not capped and drops_in_parts(query, key):
        return drop_in_parts(query, key, value, visible, dropout)
    if kernel == "fused":
        return F.scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=dropout)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if isinstance(kernel, Softcap):
        scores = kernel.bound * (scores / kernel.bound).tanh()
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    wide = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.softmax(-1, dtype=wide)
    attended: Tensor = F.dropout(weights, dropout).to(value.dtype) @ value
    return attended


def _by_block(
    query: Float[Tensor, "B H T d"],
    key: Float[Tensor, "B H T d"],
    value: Float[Tensor, "B H T e"],
    blocks: Blocks,
    dropout: float,
    kernel: Kernel,
) -> Float[Tensor, "B H T e"]:
    batch, heads, length, _ = query.shape
    parts = []
    for x in (query, key, value):  # [B H T d] -> [1 H B*T d] -> of each block [1 H n d]
        row = x.transpose(1, 2).reshape(1, batch * length, heads, -1)
        parts.append(row.transpose(1, 2).split(blocks.sizes, dim=2))  # type: ignore[no-untyped-call]
    found = []
    for q, k, v, mask in zip(*parts, blocks.masks, strict=True):
        found.append(attend(q, k, v, mask, dropout, kernel).transpose(1, 2))
    return torch.cat(found, dim=1).view(batch, length, heads, -1).transpose(1, 2)


def use_kernel(kernel: Kernel, networks: nn.Module) -> bool:
    """Let all attention inside `networks` use a kernel; returns whether there is any that can be chosen for.

    That is a module with an attribute `kernel`, which it passes to `attend`, or acts upon in its own way.
    """
    found: list[Any] = [module for module in networks.modules() if getattr(module, "kernel", None) in KERNELS]
    for module in found:
        module.kernel = kernel
    return bool(found)


def _mask(attention_mask: Bool[Tensor, "B T"], documents: Int[Tensor, "B T"] | None) -> Bool[Tensor, "B 1 _ T"]:
    visible = attention_mask[:, None, :]
    if documents is not None:
        visible = visible & (documents[:, :, None] == documents[:, None, :])
    return (visible | ~visible.any(-1, keepdim=True))[:, None]
