"""Floating point operations of a training step.

Matrix products are counted, two operations per multiply-add, as torch.utils.flop_counter counts them; a backward pass
costs twice its forward pass. Per row of the batch, with T positions, K masked slots, E the embedding width, D a
backbone's width and V the vocabulary size:

    generator      backbone(T) + [2 T E D if E != D] + 2 K (D E + E V)
    discriminator  backbone(T) + [2 T E D if E != D] + 2 T (D D + D)
    a step         3 x batch_size x (generator + discriminator)

Not counted: element-wise operations, softmax, norms, look-ups, sampling, the optimizer, and the recomputation of a
reversible or checkpointed backbone. (The paper's flops_computation.py counts some of those.)
"""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from electra_lab.model.network import Network


def network_flops(network: Network, length: int, masked: int) -> int:
    """Return the FLOPs of a forward pass over one row: `length` positions, `masked` slots with vocabulary logits."""
    dim, embedding = network.dim, network.embeddings.dim
    padded = length + -length % network.length_multiple
    flops = backbone_flops(network.backbone, padded, dim)
    if network.project is not None:
        flops += 2 * padded * embedding * dim
    if "tokens" in network.heads:
        flops += 2 * masked * (dim * embedding + embedding * network.embeddings.tokens.num_embeddings)
    if "replaced" in network.heads:
        flops += 2 * length * (dim * dim + dim)
    return flops


def backbone_flops(backbone: nn.Module, length: int, dim: int) -> int:
    """Return the backbone's own formula, or torch's count if it has none."""
    formula = getattr(backbone, "flops", None)
    return int(formula(length)) if callable(formula) else counted_flops(backbone, length, dim)


def counted_flops(backbone: nn.Module, length: int, dim: int) -> int:
    """Return torch's count of one forward pass over one row."""
    parameter = next(backbone.parameters())
    x = torch.zeros(1, length, dim, device=parameter.device, dtype=parameter.dtype)
    mask = torch.ones(1, length, dtype=torch.bool, device=parameter.device)
    training = backbone.training
    on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # torch's counter knows only kernels of CUDA
    fused = {on_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)}  # type: ignore[no-untyped-call]
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=fused) as counter:
        backbone.eval()(x, mask)
    backbone.train(training)
    return int(counter.get_total_flops())
