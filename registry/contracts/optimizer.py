"""Optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Optimizer(Protocol):
    """An optimizer. Registered as a class derived from torch.optim.Optimizer:

        __init__(self, parameters, learning_rate, /, *, <options>)

    `parameters` is a sequence of (name, parameter), shared parameters once. The learning rate of each group is the one
    it was built with, times the factor of the schedule. All state is tensors: every one of them is in the checkpoint. A
    step that is not finite is undone by the lab; for that, state must either exist from the start or begin at zero.

    One whose update of a number depends on that number, its gradient and its state alone may declare it, by
    `@optimizers.register(name, elementwise=True)`; others cannot be used with train.parallel: fsdp, where no process
    holds a whole parameter.
    """

    @property
    def param_groups(self) -> list[dict[str, Any]]: ...

    def step(self) -> Any: ...

    def state_bytes(self, parameter: Tensor) -> int:
        """Return how many bytes of state the optimizer keeps for one of the parameters it was given."""
