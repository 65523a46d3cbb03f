"""Optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Optimizer(Protocol):
    """An optimizer. Registered as a class derived from torch.optim.Optimizer:

        __init__(self, parameters, learning_rate, /, *, <options>)

    `parameters` is a sequence of (name, parameter), shared parameters once. The lab may split groups by layer or
    network, keeping their options, and sets the learning rate of each group to its initial value times the factor of
    the schedule. All state is tensors, which are saved in checkpoints. The lab undoes non-finite steps, so state must
    exist from the start or begin at zero.

    `@optimizers.register(name, elementwise=True)` declares that the update of each number depends only on that number,
    its gradient and its state. Other optimizers cannot be used with train.parallel: fsdp.
    """

    @property
    def param_groups(self) -> list[dict[str, Any]]: ...

    def step(self) -> Any: ...

    def state_bytes(self, parameter: Tensor) -> int:
        """Return the number of bytes of state of one of its parameters."""
