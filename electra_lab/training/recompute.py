"""Activation checkpointing: keep a layer's inputs alone, and compute the rest again in the backward pass."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute(modules: Iterable[nn.Module]) -> None:
    """Let modules keep no activations in training, in place (Chen et al. 2016). All numbers stay, dropout included."""
    for module in modules:
        module.forward = Recomputing(module, module.forward)


class Recomputing:
    """A module's forward pass, which is computed again in the backward pass. A copy of the module has its own."""

    def __init__(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        self.module, self.forward = module, forward

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        if not (self.module.training and torch.is_grad_enabled()):
            return self.forward(*inputs, **options)
        return checkpoint(self.forward, *inputs, use_reentrant=False, **options)
