"""Floating point operations of a training step.

Matrix products are counted, two operations per multiply-add, as torch.utils.flop_counter counts them; a backward pass
costs twice its forward pass. Per row of the batch, with T positions, K masked slots, E the embedding width, D a
backbone's width and V the vocabulary size:

    generator      backbone(T) + [2 T E D if E != D] + 2 K (D E + E V)
    discriminator  backbone(T) + [2 T E D if E != D] + 2 T (D D + D)
    a step         3 x batch_size x (generator + discriminator)

Not counted: element-wise operations, softmax, norms, look-ups, sampling, the optimizer, and the recomputation of a
reversible or checkpointed backbone.

The paper's numbers follow another convention, that of flops_computation.py in google-research/electra. It counts a
backward pass as much as its forward pass, where matrix products cost twice as much; and it counts what we leave out:
element-wise operations, and look-ups of embeddings as products with one-hot vectors, which is most of the difference
for small networks. Of the positions, 15.625 % have vocabulary logits there, whatever the masking. For ELECTRA-Small,
-Base and -Large (400K steps) this gives 1.294e18, 6.425e19 and 7.118e20 FLOPs, where matrix products are 1.153e18,
6.705e19 and 9.098e20.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from electra_lab.model.network import Network


@dataclass(frozen=True)
class Convention:
    """How FLOPs are counted."""

    # Of a network over one row, from its length, its masked slots and its heads.
    forward: Callable[[Network, int, int, Collection[str] | None], float]
    backward: int  # forward passes that a backward pass counts as


def network_flops(network: Network, length: int, masked: int, heads: Collection[str] | None = None) -> int:
    """Return the FLOPs of a forward pass over one row: `length` positions, `masked` slots with vocabulary logits.

    heads  the heads that are read, by default all
    """
    dim, embedding = network.dim, network.embeddings.dim
    padded = length + -length % network.length_multiple
    flops = backbone_flops(network.backbone, padded, dim)
    if network.project is not None:
        flops += 2 * padded * embedding * dim
    return flops + sum(int(head.flops(length, masked)) for head in _read(network, heads))


def _read(network: Network, heads: Collection[str] | None) -> list[Any]:
    return [head for name, head in network.heads.items() if heads is None or name in heads]


def backbone_flops(backbone: nn.Module, length: int, dim: int) -> int:
    """Return the backbone's own formula, or torch's count if it has none."""
    formula = getattr(backbone, "flops", None)
    return int(formula(length)) if callable(formula) else counted_flops(backbone, length, dim)


def counted_flops(backbone: nn.Module, length: int, dim: int) -> int:
    """Return torch's count of one forward pass over one row."""
    parameter = next(backbone.parameters())
    width = int(getattr(backbone, "input_dim", dim))
    x = torch.zeros(1, length, width, device=parameter.device, dtype=parameter.dtype)
    mask = torch.ones(1, length, dtype=torch.bool, device=parameter.device)
    training = backbone.training
    on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # torch's counter knows only kernels of CUDA
    fused = {on_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)}  # type: ignore[no-untyped-call]
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=fused) as counter:
        backbone.eval()(x, mask)
    backbone.train(training)
    return int(counter.get_total_flops())


# Operations for each number that they are applied to, as the script has them.
DROPOUT, NORM, GELU, SOFTMAX = 4, 5, 8, 5
OUTPUTS = 0.15625  # share of the positions with vocabulary logits: 20 of 128, 80 of 512


def paper_flops(network: Network, length: int, masked: int, heads: Collection[str] | None = None) -> float:
    """Return the FLOPs of a forward pass over one row as flops_computation.py of google-research/electra counts them.

    Backbones and heads that the script knows have their own formula, `paper_flops`; for the others, their matrix
    products stand in. With logits at every position, `masked` is `length`.
    """
    dim, embedding, words = network.dim, network.embeddings.dim, network.embeddings.tokens.num_embeddings
    backbone = network.backbone
    formula = getattr(backbone, "paper_flops", None)
    flops = float(formula(length)) if callable(formula) else float(backbone_flops(backbone, length, dim))
    look_ups = 2 * embedding * (words + length + 2)  # of tokens, positions and two segments
    flops += length * (look_ups + (2 + NORM + DROPOUT) * embedding)
    if network.project is not None:
        flops += length * (2 * dim * embedding + dim)
    for head in _read(network, heads):
        flops += getattr(head, "paper_flops", head.flops)(length, masked)
    return flops


MATRIX_PRODUCTS = Convention(network_flops, backward=2)
PAPER = Convention(paper_flops, backward=1)
