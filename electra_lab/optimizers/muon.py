"""Muon."""

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor, nn, optim

from electra_lab.optimizers.adamw import Beta, decayed
from registry import optimizers

OUTSIDE = re.compile(r"emb|(^|\.)heads?\.")  # in names of parameters: embeddings and output heads


@optimizers.register("muon")
class Muon(optim.Optimizer):
    """torch.optim.Muon (Jordan et al. 2024) for the matrices of hidden layers, AdamW for everything else.

    Muon makes a matrix's averaged gradient nearly orthogonal. AdamW has embeddings (names with `emb`), output heads
    (names with a part `head` or `heads`), biases, gains, and all that is not a matrix of several rows and columns.

    momentum       of the averaged gradient of matrices
    nesterov       look one step ahead along it
    ns_steps       Newton-Schulz iterations that make it orthogonal
    adjust_lr_fn   match_rms_adamw: 0.2 sqrt(max(rows, columns)) times train.learning_rate, so that updates are as large
                   as AdamW's and its rates can be kept (Liu et al. 2025); original: sqrt(max(1, rows / columns)) times,
                   for rates around 0.02
    weight_decay   decoupled, of both; biases and gains do not decay
    adamw_scale    AdamW's learning rate as a factor of train.learning_rate, which is Muon's
    betas          of AdamW
    epsilon        of AdamW
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, nn.Parameter]],
        learning_rate: float,
        /,
        *,
        momentum: Annotated[float, Field(ge=0, lt=1)] = 0.95,
        nesterov: bool = True,
        ns_steps: Annotated[int, Field(ge=1, lt=100)] = 5,
        adjust_lr_fn: Literal["match_rms_adamw", "original"] = "match_rms_adamw",
        weight_decay: Annotated[float, Field(ge=0)] = 0.01,
        adamw_scale: Annotated[float, Field(ge=0)] = 1.0,
        betas: tuple[Beta, Beta] = (0.9, 0.999),
        epsilon: Annotated[float, Field(gt=0)] = 1e-6,
    ) -> None:
        # Both work on the groups and the state of this optimizer, which `step` hands to them.
        options: dict[str, Any] = {"momentum": momentum, "nesterov": nesterov, "ns_steps": ns_steps}
        self._muon = optim.Muon([{"params": []}], learning_rate, weight_decay, adjust_lr_fn=adjust_lr_fn, **options)
        # The fused kernel keeps its step counts on the device.
        self._adamw = optim.AdamW([{"params": []}], adamw_scale * learning_rate, betas, epsilon, fused=True)
        self._hidden = {parameter for name, parameter in parameters if is_hidden(name, parameter)}
        hidden = [parameter for _, parameter in parameters if parameter in self._hidden]
        others = [(name, parameter) for name, parameter in parameters if parameter not in self._hidden]
        groups = [{**self._adamw.defaults, **group} for group in decayed(others, weight_decay)]
        if hidden:
            groups.insert(0, {**self._muon.defaults, "params": hidden})
        super().__init__(groups, {})

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]  # no closure is used
        for optimizer, option in ((self._muon, "momentum"), (self._adamw, "betas")):
            groups = [group for group in self.param_groups if option in group]
            optimizer.state, optimizer.param_groups = self.state, groups
            optimizer.step()  # type: ignore[no-untyped-call]

    def state_bytes(self, parameter: Tensor) -> int:
        """One moment for a hidden matrix, otherwise two and a step count, in float32."""
        number = parameter.numel()
        return 4 * number if parameter in self._hidden else 8 * number + 4


def is_hidden(name: str, parameter: Tensor) -> bool:
    """Return True for a matrix between the embeddings and the output heads."""
    return parameter.ndim == 2 and min(parameter.shape) > 1 and not OUTSIDE.search(name)
