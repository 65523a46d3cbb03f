"""How a step is executed: its precision, the loss scale of float16, compiled or eager code; whether it is accepted."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from registry.contracts.objective import World
from registry.errors import DivergedError

Precision = Literal["bf16", "fp16", "fp32"]
NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}  # the types of products; all else is in fp32
START, FACTOR = 2.0**16, 2.0
LEAD = 100  # accepted steps before the first spike, and those that the running average of the norms remembers
CALM = 2000  # steps without an overflow after which the scale grows

# Torch's stance is one for the process: blocks of several threads that restored it themselves could leave it changed.
_stance, _lock, _open = ExitStack(), threading.Lock(), 0


@contextmanager
def autocast(device: torch.device, precision: Precision) -> Iterator[None]:
    """Compute matrix products in a narrow type; weights, softmax and losses stay in fp32.

    Torch keeps narrow copies of weights until the outermost block ends. They are dropped here, as a training within
    another block would compute all steps with the copies of its first one, and pass no gradient to a weight that was
    copied without.
    """
    torch.clear_autocast_cache()
    with torch.autocast(device.type, NARROW.get(precision, torch.bfloat16), enabled=precision in NARROW):
        try:
            yield
        finally:
            torch.clear_autocast_cache()


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run everything eagerly in this process until all threads have left these blocks."""
    global _open
    with _lock:
        # Without torch's compiler, whose import takes seconds, there is no compiled code.
        if not _open and "torch._dynamo" in sys.modules:
            _stance.enter_context(torch.compiler.set_stance("force_eager"))
        _open += 1
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if not _open:
                _stance.close()


class LossScale:
    """The factor of a loss whose gradients are computed in float16; they are divided by it before anything reads them.

    It doubles after CALM steps and halves where gradients overflow, as that of torch.amp.GradScaler, whose step makes
    the host wait for the device. Here everything stays on the device, and powers of two round nothing. All ranks see
    the same summed gradients, so that they agree without an exchange.

    overflows  number of steps since the last log line that were skipped because the scale was too large
    """

    def __init__(self, device: torch.device, scale: float = START, calm: int = 0, overflows: int = 0) -> None:
        self.scale = torch.tensor(scale, device=device)
        self.calm = torch.tensor(calm, device=device, dtype=torch.int32)
        self.overflows = torch.tensor(overflows, device=device, dtype=torch.int32)

    @torch.no_grad()
    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide the gradients, in place; those that overflowed are not finite and stay so."""
        inverse = self.scale.reciprocal()
        for parameter in parameters:
            if parameter.grad is not None:
                gradient: Any = parameter.grad
                (gradient.to_local() if hasattr(gradient, "to_local") else gradient).mul_(inverse)

    @torch.no_grad()
    def update(self, loss: Tensor, gradients: Tensor) -> Tensor:
        """Adapt to a step; returns True if it overflowed. `loss` and `gradients` are True where these were finite.

        An overflow is due to the scale if the loss was finite and the scale is above 1. At 1 it has no effect, and the
        training itself has diverged.
        """
        too_large = loss & ~gradients & (self.scale > 1)
        calm = torch.where(gradients, self.calm + 1, 0)
        grows = calm >= CALM
        scale = torch.where(grows, self.scale * FACTOR, torch.where(too_large, self.scale / FACTOR, self.scale))
        self.scale.copy_(scale)
        self.calm.copy_(torch.where(grows, 0, calm))
        self.overflows.add_(too_large)
        return too_large

    def forget(self) -> None:
        """Begin a new window, at a log line."""
        self.overflows.zero_()

    def state(self) -> dict[str, Any]:
        """Return the state as numbers, for a checkpoint. The host waits for the device."""
        return {"scale": float(self.scale), "calm": int(self.calm), "overflows": int(self.overflows)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], device: torch.device) -> LossScale:
        return cls(device, **state)


class Watch:
    """Decides which steps are accepted, and remembers the first rejected one since the last log line.

    It is on the device, at fixed addresses, and the host never waits for it. All ranks decide the same, as loss and
    norm are those of the global batch.

    factor    multiple of the average norm above which a norm is a spike; None for no limit
    average   mean norm of the first LEAD accepted steps, then an exponential average with the same memory
    accepted  number of steps in the average
    first     first rejected step since the last log line, -1 if there is none
    spiked    True if the first rejected step was a spike
    """

    def __init__(
        self,
        device: torch.device | None = None,
        factor: float | None = None,
        *,
        average: float = 0.0,
        accepted: int = 0,
        first: int = -1,
        spiked: bool = False,
    ) -> None:
        self.factor = factor
        self.average = torch.tensor(average, dtype=torch.float64, device=device)
        self.accepted = torch.tensor(accepted, device=device)
        self.first = torch.tensor(first, device=device)
        self.spiked = torch.tensor(spiked, device=device)
        self.step = torch.tensor(-1, device=device)  # the step to judge next

    @torch.no_grad()
    def judge(self, finite: Tensor, norm: Tensor, overflow: Tensor | None) -> Tensor:
        """Return whether the step is accepted.

        finite    True if loss and gradient are finite
        norm      norm of the gradient before clipping
        overflow  True if the loss scale of fp16 was too large, which skips the step without rejecting it
        """
        accepted, spike = finite, torch.zeros_like(finite)
        if self.factor is not None:
            norm = norm.double()
            spike = finite & (self.accepted >= LEAD) & (norm > self.factor * self.average)
            accepted = finite & ~spike
            mean = self.average + (norm - self.average) / (self.accepted + 1).clamp(max=LEAD)
            self.average.copy_(torch.where(accepted, mean, self.average))
            self.accepted.add_(accepted)
        new = ~accepted & (self.first < 0)
        if overflow is not None:
            new = new & ~overflow
        self.first.copy_(torch.where(new, self.step, self.first))
        self.spiked.copy_(torch.where(new, spike, self.spiked))
        return accepted

    def forget(self) -> None:
        """Begin a new window, at a log line."""
        self.first.fill_(-1)
        self.spiked.zero_()

    def state(self) -> dict[str, Any]:
        """Return the state as numbers, for a checkpoint. The host waits for the device."""
        numbers = {"average": float(self.average), "accepted": int(self.accepted)}
        return {**numbers, "first": int(self.first), "spiked": bool(self.spiked)}

    @classmethod
    def from_state(
        cls, state: Mapping[str, Any], device: torch.device | None = None, factor: float | None = None
    ) -> Self:
        return cls(device, factor, **state)


@torch.no_grad()
def non_finite_parameters(module: nn.Module, world: World) -> list[str]:
    """Return the names of the parameters that are not finite. All ranks must call it."""
    named = {name: parameter.detach() for name, parameter in module.named_parameters()}
    local = {name: p.to_local() if hasattr(p, "to_local") else p for name, p in named.items()}
    wrong = world.sum({name: (~p.isfinite()).sum() for name, p in local.items()})
    counts = torch.stack([count.double() for count in wrong.values()]).tolist() if wrong else []
    return [name for name, count in zip(wrong, counts, strict=True) if count]


def non_finite_weights(names: list[str], step: int) -> DivergedError:
    """Return the error for parameters, or state of the optimizer, that are not finite after `step` steps."""
    which = f"{names[0]} is" if len(names) == 1 else f"{names[0]} (and {len(names) - 1:,} more tensors) are"
    return DivergedError(
        f"step {step:,}: {which} no longer finite, although the loss and the gradient were: the update overflowed. "
        "Training cannot recover from this, and nothing is saved. In a new run, lower train.learning_rate or "
        "optimizer.weight_decay, or raise optimizer.epsilon."
    )


def rejected_steps(
    number: int, first: int, spiked: bool, step: int, *, factor: float | None, limit: tuple[int, int] | None = None
) -> DivergedError:
    """Return the error for rejected steps; the weights are sound.

    number, first  number of rejected steps since the last log line, and the first of them, from 0
    step           number of steps done
    limit          number of steps rejected in total, and the largest allowed number
    """
    steps = f"{number:,} of the steps since the last log line"
    what = f"the loss or gradient of {steps} was not finite (first at step {first + 1:,})"
    if spiked:
        what = (
            f"in {steps}, first in step {first + 1:,}, the norm of the gradient was above {factor:g} times its average"
        )
    over = f" That makes {limit[0]:,} in all, more than train.skip_limit ({limit[1]:,})." if limit else ""
    cure = "set train.on_non_finite: skip" if limit is None else "raise train.skip_limit"
    return DivergedError(
        f"step {step:,}: {what}. They were skipped, so no weight is damaged.{over} Lower "
        f"train.learning_rate, lengthen the warm-up (schedules.learning_rate.warmup_steps), or {cure}."
    )
