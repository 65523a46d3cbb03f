"""Floating point operations of a training step.

Counted are matrix products, two operations a multiply-add, as torch.utils.flop_counter counts them; a backward pass
costs twice its forward pass. Per row of the batch, with T positions, K masked slots, E the embedding width, D a
backbone's width and V the vocabulary:

    generator      backbone(T) + [2 T E D if E != D] + 2 K (D E + E V)
    discriminator  backbone(T) + [2 T E D if E != D] + 2 T (D D + D)
    a step         3 x batch_size x (generator + discriminator)

Not counted: element-wise work, softmax, norms, look-ups, sampling, the optimizer, and what a reversible or
checkpointed backbone computes again. (The paper's flops_computation.py counts some of those; its numbers are higher.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from electra_lab.model.network import Network


def network_flops(network: Network, length: int, masked: int) -> int:
    """Forward pass over one row: `length` positions, `masked` slots with vocabulary logits."""
    dim, embedding = network.dim, network.embeddings.dim
    padded = length + -length % network.length_multiple
    flops = backbone_flops(network.backbone, padded, dim)
    if network.project is not None:
        flops += 2 * padded * embedding * dim
    if network.token_head is not None:
        flops += 2 * masked * (dim * embedding + embedding * network.embeddings.tokens.num_embeddings)
    if network.replaced_head is not None:
        flops += 2 * length * (dim * dim + dim)
    return flops


def backbone_flops(backbone: nn.Module, length: int, dim: int) -> int:
    """The backbone's own formula, or for one without, what torch counts."""
    formula = getattr(backbone, "flops", None)
    if callable(formula):
        return int(formula(length))
    return counted_flops(backbone, length, dim)


def counted_flops(backbone: nn.Module, length: int, dim: int) -> int:
    """What torch's counter sees in one forward pass over one row."""
    parameter = next(backbone.parameters())
    x = torch.zeros(1, length, dim, device=parameter.device, dtype=parameter.dtype)
    mask = torch.ones(1, length, dtype=torch.bool, device=parameter.device)
    training = backbone.training
    fused_on_cpu = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=fused_on_cpu) as counter:
        backbone.eval()(x, mask)
    backbone.train(training)
    return int(counter.get_total_flops())


def _attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Of shapes; torch's counter knows the fused kernels of CUDA and not the CPU's."""
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]
