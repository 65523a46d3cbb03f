"""Adafactor."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn, optim

from electra_lab.optimizers.adamw import decayed, rate_of
from registry import optimizers


@optimizers.register("adafactor")
class Adafactor(optim.Optimizer):
    """Adafactor (Shazeer and Stern 2018): row and column means in place of a matrix's second moments, no first moments.

    It computes the same as torch.optim.Adafactor, but does not wait for the device several times per parameter.
    A step is at most train.learning_rate times the parameter's root mean square, so rates around 1e-2 are usual.

    weight_decay  decoupled; biases and gains do not decay
    decay         exponent of the averages: the second moments forget 1 - t^decay at step t
    epsilon       the least root mean square of a parameter that steps are relative to
    clip          the largest root mean square of an update, before the learning rate
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, nn.Parameter]],
        learning_rate: float,
        /,
        *,
        weight_decay: Annotated[float, Field(ge=0)] = 0.0,
        decay: Annotated[float, Field(le=0)] = -0.8,
        epsilon: Annotated[float, Field(gt=0)] = 1e-3,
        clip: Annotated[float, Field(ge=1)] = 1.0,
    ) -> None:
        defaults = {"lr": learning_rate, "decay": decay, "epsilon": epsilon, "clip": clip}
        super().__init__(decayed(parameters, weight_decay), defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]  # no closure is used
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = gradient.new_zeros((), dtype=torch.float32)
            if gradient.ndim > 1:
                state["rows"] = gradient.new_zeros([*gradient.shape[:-1], 1])
                state["columns"] = gradient.new_zeros([*gradient.shape[:-2], 1, gradient.shape[-1]])
            else:
                state["variance"] = torch.zeros_like(gradient)
        state["step"] += 1
        rate = rate_of(group, parameter)
        forget, tiny = state["step"] ** group["decay"], torch.finfo(parameter.dtype).eps
        size = state["step"].rsqrt().clamp(max=rate) * _root_mean_square(parameter).clamp(min=group["epsilon"])
        parameter.mul_(1 - rate * group["weight_decay"])
        squares = gradient.square()
        if gradient.ndim > 1:
            state["rows"].lerp_(squares.mean(-1, keepdim=True), forget)
            state["columns"].lerp_(squares.mean(-2, keepdim=True), forget)
            scale = state["rows"].mean(-2, keepdim=True).clamp(min=tiny)
            variance = state["rows"] @ state["columns"] / scale
        else:
            variance = state["variance"].lerp_(squares, forget)
        update = gradient * variance.clamp(min=tiny * tiny).rsqrt()
        parameter.sub_(update * (size / (_root_mean_square(update) / group["clip"]).clamp(min=1.0)))

    def state_bytes(self, parameter: Tensor) -> int:
        """The means of rows and columns, or all second moments of a vector, and a step count, in float32."""
        number = parameter.numel()
        if parameter.ndim > 1:
            height, width = parameter.shape[-2:]
            number = number // width + number // height
        return 4 * number + 4


def _root_mean_square(x: Tensor) -> Tensor:
    mean: Tensor = torch.linalg.vector_norm(x) / x.numel() ** 0.5
    return mean
