"""AdamW of google-research/electra."""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn, optim
from torch.optim.adamw import adamw

from electra_lab.optimizers.adamw import Beta, decayed
from registry import optimizers


@optimizers.register("adamw_no_bias_correction", elementwise=True)
class AdamWNoBiasCorrection(optim.Optimizer):
    """AdamW as in google-research/electra: it does not correct the bias of the averages, which begin at zero.

    With the default betas, updates are 3 to 7 times as large as those of `adamw` for the first 100 steps and 3 % larger
    after 3,000 (model/optimization.py, AdamWeightDecayOptimizer). Biases and gains do not decay.
    """

    _step_supports_amp_scaling = True  # torch's name: the kernel reads on the device whether to skip the step

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
        super().__init__(decayed(parameters, weight_decay), {"lr": learning_rate, "betas": betas, "eps": epsilon})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]  # no closure is used
        for group in self.param_groups:
            learning = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in learning:
                if not self.state[parameter]:
                    averages = ("exp_avg", "exp_avg_sq")
                    self.state[parameter] = {name: torch.zeros_like(parameter) for name in averages}
            if learning:
                self._update(learning, group)

    def _update(self, learning: list[Tensor], group: dict[str, Any]) -> None:
        # torch divides by 1 - beta^step, which is 1 after infinitely many steps.
        endless = [torch.full((), math.inf, device=learning[0].device)] * len(learning)
        adamw(
            learning,
            [parameter.grad for parameter in learning if parameter.grad is not None],
            [self.state[parameter]["exp_avg"] for parameter in learning],
            [self.state[parameter]["exp_avg_sq"] for parameter in learning],
            [],
            endless,
            fused=True,
            amsgrad=False,
            maximize=False,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            grad_scale=getattr(self, "grad_scale", None),
            found_inf=getattr(self, "found_inf", None),
        )

    def state_bytes(self, parameter: Tensor) -> int:
        """Two moments in float32."""
        return 8 * parameter.numel()
