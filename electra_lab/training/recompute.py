"""Activation checkpointing: keep a layer's inputs alone, and compute the rest again in the backward pass."""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute(modules: Iterable[nn.Module]) -> None:
    """Let modules keep no activations in training, in place (Chen et al. 2016). All numbers stay, dropout included."""
    for module in modules:
        module.forward = _recomputing(module, module.forward)


def _recomputing(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def recomputing(*inputs: Any, **options: Any) -> Any:
        if not (module.training and torch.is_grad_enabled()):
            return forward(*inputs, **options)
        return checkpoint(forward, *inputs, use_reentrant=False, **options)

    return recomputing
