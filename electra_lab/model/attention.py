"""Exact softmax attention by one of several kernels. Which is faster depends on the machine, the type, the length."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Softcap:
    """Products whose scores s are bounded to c tanh(s / c) before the softmax (Gemma Team 2024)."""

    bound: float


Kernel = Literal["fused", "products"] | Softcap
KERNELS: tuple[Kernel, ...] = ("fused", "products")  # that compute the same


def attend(
    query: Float[Tensor, "B H T d"],
    key: Float[Tensor, "B H S d"],
    value: Float[Tensor, "B H S e"],
    visible: Bool[Tensor, " B #H #T S"],
    dropout: float,
    kernel: Kernel,
) -> Float[Tensor, "B H T e"]:
    """softmax(q k / sqrt(d)) v, with dropout on the weights. Every row of `visible` needs a position.

    kernel  fused: torch's scaled_dot_product_attention; products: two batched matrix products with a softmax in
            between, which keep the matrix of weights for the backward pass
    """
    if kernel == "fused":
        return F.scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=dropout)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if isinstance(kernel, Softcap):
        scores = kernel.bound * (scores / kernel.bound).tanh()
    wide = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1, dtype=wide)
    attended: Tensor = F.dropout(weights, dropout).to(value.dtype) @ value
    return attended


def use_kernel(kernel: Kernel, networks: nn.Module) -> bool:
    """Let all attention inside `networks` use a kernel; returns whether there is any that can be chosen for.

    That is a module with an attribute `kernel`, which it passes to `attend`, or acts upon in its own way.
    """
    found: list[Any] = [module for module in networks.modules() if getattr(module, "kernel", None) in KERNELS]
    for module in found:
        module.kernel = kernel
    return bool(found)
