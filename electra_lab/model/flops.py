"""Floating point operations of a training step.

Matrix products are counted, two operations per multiply-add, as torch.utils.flop_counter counts them; a backward pass
costs twice its forward pass. Per row of the batch, with T positions, K masked slots, E the embedding width, D a
backbone's width and V the vocabulary size:

    generator      backbone(T) + [2 T E D if E != D] + 2 K (D E + E V)
    discriminator  backbone(T) + [2 T E D if E != D] + 2 T (D D + D)
    a step         3 x batch_size x (generator + discriminator)

What a backbone computes once for all rows, as DeBERTa projects its relative positions, is added for each micro-batch of
train.micro_batch_size rows. Budgets do not depend on the machine: with `auto`, and for any number of processes, the
micro-batch is the batch.

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
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from electra_lab.model.network import Network
from registry import Backbone

# By backbone without a formula and by length: torch's counts for one row and for two, which take a while.
COUNTS = WeakKeyDictionary[nn.Module, dict[int, tuple[int, int]]]()


@dataclass(frozen=True)
class Convention:
    """How FLOPs are counted."""

    # Of a network over some rows at a time, from their length, their masked slots, the heads and the number of rows.
    forward: Callable[[Network, int, int, Collection[str] | None, int], float]
    backward: int  # forward passes that a backward pass counts as


def network_flops(
    network: Network, length: int, masked: int, heads: Collection[str] | None = None, rows: int = 1
) -> int:
    """Return the FLOPs of a forward pass over rows of `length` positions, `masked` of them with vocabulary logits.

    heads  names of the heads that are read, by default all
    """
    dim, embedding = network.dim, network.embeddings.dim
    padded = length + -length % network.length_multiple
    flops = sum(int(head.flops(length, masked)) for head in read_heads(network, heads))
    if network.project is not None:
        flops += 2 * padded * embedding * dim
    return rows * flops + backbone_flops(network.backbone, padded, dim, rows)


def read_heads(network: Network, heads: Collection[str] | None) -> list[Any]:
    return [head for name, head in network.heads.items() if heads is None or name in heads]


def backbone_flops(backbone: Backbone, length: int, dim: int, rows: int = 1) -> int:
    """Return the FLOPs of a forward pass by the backbone's formulas, or by torch's counts if it has none."""
    formula = backbone.flops(length)
    if formula is not None:
        return rows * formula + backbone.shared_flops(length)
    counts = COUNTS.setdefault(backbone, {})
    if length not in counts:
        counts[length] = counted_flops(backbone, length, dim), counted_flops(backbone, length, dim, 2)
    single, double = counts[length]
    return single + (rows - 1) * (double - single)


def counted_flops(backbone: Backbone, length: int, dim: int, rows: int = 1) -> int:
    """Return torch's count of one forward pass."""
    parameter = next(backbone.parameters())
    x = torch.zeros(rows, length, backbone.input_dim or dim, device=parameter.device, dtype=parameter.dtype)
    mask = torch.ones(rows, length, dtype=torch.bool, device=parameter.device)
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


def paper_flops(
    network: Network, length: int, masked: int, heads: Collection[str] | None = None, rows: int = 1
) -> float:
    """Return the FLOPs of a forward pass over rows as flops_computation.py of google-research/electra counts them.

    Backbones and heads of that script have a formula, `paper_flops`; others count their matrix products. With logits
    at every position, `masked` is `length`.
    """
    dim, embedding, words = network.dim, network.embeddings.dim, network.embeddings.tokens.num_embeddings
    look_ups = 2 * embedding * (words + length + 2)  # of tokens, positions and two segments
    flops = float(length) * (look_ups + (2 + NORM + DROPOUT) * embedding)
    if network.project is not None:
        flops += length * (2 * dim * embedding + dim)
    for head in read_heads(network, heads):
        flops += getattr(head, "paper_flops", head.flops)(length, masked)
    formula = network.backbone.paper_flops(length)
    if formula is not None:
        return rows * (flops + formula)
    return rows * flops + backbone_flops(network.backbone, length, dim, rows)


MATRIX_PRODUCTS = Convention(network_flops, backward=2)
PAPER = Convention(paper_flops, backward=1)
