"""AdamW."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn, optim

from electra_lab.optimizers._groups import Beta, decayed
from registry import optimizers


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
