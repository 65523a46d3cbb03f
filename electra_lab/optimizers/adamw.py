"""AdamW."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn, optim

from registry import optimizers

Beta = Annotated[float, Field(ge=0, lt=1)]


def decayed(parameters: Sequence[tuple[str, nn.Parameter]], weight_decay: float) -> list[dict[str, Any]]:
    """Return two groups: no decay for parameters with fewer than two dimensions, which are biases and gains."""
    groups = [
        {"params": [p for _, p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for _, p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def rate_of(group: Mapping[str, Any], parameter: Tensor) -> Tensor:
    """Return a group's rate on the parameter's device: a number and a tensor would round differently in arithmetic."""
    rate: float | Tensor = group["lr"]
    return rate if isinstance(rate, Tensor) else parameter.new_full((), rate, dtype=torch.float32)


@optimizers.register("adamw", elementwise=True)
class AdamW(optim.AdamW):
    """AdamW (Loshchilov and Hutter 2019) with the hyper-parameters of google-research/electra.

    Biases and gains do not decay. torch corrects the bias of the averages, google-research/electra does not (see
    `adamw_no_bias_correction`); the difference is gone after some thousand steps, and the warm-up hides it before that.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, nn.Parameter]],
        learning_rate: float,
        /,
        *,
        weight_decay: Annotated[float, Field(ge=0)] = 0.01,
        betas: tuple[Beta, Beta] = (0.9, 0.999),
        epsilon: Annotated[float, Field(gt=0)] = 1e-6,
    ) -> None:
        # The fused kernel can skip a step on a flag that lives on the device.
        super().__init__(decayed(parameters, weight_decay), lr=learning_rate, betas=betas, eps=epsilon, fused=True)

    def state_bytes(self, parameter: Tensor) -> int:
        """Two moments and a step count, in float32."""
        return 8 * parameter.numel() + 4
