"""Initial weights, as in BERT and google-research/electra: N(0, 0.02), biases zero."""

import torch
from torch import nn

STANDARD_DEVIATION = 0.02


@torch.no_grad()
def initialise(module: nn.Module) -> None:
    """Set the weights of every nn.Linear and nn.Embedding, once each, from torch's global generator.

    Gains, gates and zero weights of a library are left alone: a zero output projection is a deliberate choice, and
    x-transformers stores LayerNorm gains as offsets. (The official code truncates the normal at two deviations.)
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding) and part.weight.count_nonzero():
            nn.init.normal_(part.weight, std=STANDARD_DEVIATION)
            if isinstance(part, nn.Linear) and part.bias is not None:
                nn.init.zeros_(part.bias)
