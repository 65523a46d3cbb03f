"""StableAdamW."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn, optim
from torch.optim.adamw import adamw

from electra_lab.optimizers.adamw import Beta, decayed, rate_of
from registry import optimizers


@optimizers.register("stable_adamw")
class StableAdamW(optim.Optimizer):
    """StableAdamW (Wortsman et al. 2023, arXiv 2304.13013, algorithm 2): AdamW with Adafactor's update clipping.

    The learning rate of each tensor is divided by max(1, RMS), RMS = sqrt(mean(g^2 / max(v, epsilon^2))): g is the
    gradient, v the average of its squares, g included. So a gradient that is larger than v expects cannot make a large
    step. Both averages are corrected for their start at zero before they are used, as by the paper's debiased betas.
    The clipped rate also multiplies the weight decay. Biases and gains do not decay.

    ModernBERT was trained with betas [0.9, 0.98], weight_decay 1e-5 and decoupled: true.

    decoupled  the weight decay follows only the schedule of the learning rate and not its peak (Loshchilov and Hutter
               2019): a step takes away weight_decay times the factor of the schedule. Values are about a thousandth of
               the usual ones
    """

    _step_supports_amp_scaling = True  # torch's name: the kernel reads on the device whether to skip the step

    def __init__(
        self,
        parameters: Sequence[tuple[str, nn.Parameter]],
        learning_rate: float,
        /,
        *,
        weight_decay: Annotated[float, Field(ge=0)] = 0.01,
        decoupled: bool = False,
        betas: tuple[Beta, Beta] = (0.9, 0.99),
        epsilon: Annotated[float, Field(gt=0)] = 1e-6,
    ) -> None:
        defaults = {"lr": learning_rate, "decoupled": decoupled, "betas": betas, "eps": epsilon}
        super().__init__(decayed(parameters, weight_decay), defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]  # no closure is used
        for group in self.param_groups:
            learning = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in learning:
                if not self.state[parameter]:
                    averages = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                    self.state[parameter] = {"step": parameter.new_zeros(()), **averages}
            if learning:
                self._update(learning, group)

    def _update(self, learning: list[Tensor], group: dict[str, Any]) -> None:
        """Update tensors of one group; `rates` has a number per tensor and stays on the device."""
        (beta1, beta2), epsilon = group["betas"], group["eps"]
        gradients = [parameter.grad for parameter in learning if parameter.grad is not None]
        states = [self.state[parameter] for parameter in learning]
        # Root mean squares of gradients relative to the averages that this step leads to
        steps = torch.stack([state["step"] for state in states]).double() + 1
        shares = 1 - beta2**steps  # shares of the averages of squares in their final size, as they begin at zero
        norms = []
        for gradient, state, share in zip(gradients, states, shares, strict=True):
            squares = (state["exp_avg_sq"] * beta2).addcmul_(gradient, gradient, value=1 - beta2)
            expected = squares.div_(share).clamp_(min=epsilon**2).sqrt_()
            norms.append(torch.linalg.vector_norm(torch.div(gradient, expected, out=expected)))
        sizes = torch._foreach_div(norms, [parameter.numel() ** 0.5 for parameter in learning])
        rates = (rate_of(group, learning[0]) / torch.stack(sizes).clamp(min=1.0)).float()
        # The rest is AdamW, at the rate of each tensor
        peak = group.get("initial_lr", group["lr"]) if group["decoupled"] else 1.0
        for parameter, gradient, state, rate in zip(learning, gradients, states, rates, strict=True):
            adamw(
                [parameter],
                [gradient],
                [state["exp_avg"]],
                [state["exp_avg_sq"]],
                [],
                [state["step"]],
                fused=True,
                amsgrad=False,
                maximize=False,
                lr=rate,
                beta1=beta1,
                beta2=beta2,
                weight_decay=group["weight_decay"] / (peak or 1.0),
                eps=epsilon,
                grad_scale=getattr(self, "grad_scale", None),
                found_inf=getattr(self, "found_inf", None),
            )

    def state_bytes(self, parameter: Tensor) -> int:
        """Two moments and a step count, in float32."""
        return 8 * parameter.numel() + 4
