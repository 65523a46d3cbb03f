"""An optimizer."""

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from registry import optimizers


@optimizers.register("my_optimizer", elementwise=True)
class MyOptimizer(torch.optim.SGD):
    """Stochastic gradient descent.

    weight_decay  added to the gradient, as torch does
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, nn.Parameter]],
        learning_rate: float,
        /,
        *,
        weight_decay: Annotated[float, Field(ge=0)] = 0.0,
    ) -> None:
        super().__init__([parameter for _, parameter in parameters], lr=learning_rate, weight_decay=weight_decay)

    def state_bytes(self, parameter: Tensor) -> int:
        """Return the bytes that the optimizer keeps for a parameter: none."""
        return 0
