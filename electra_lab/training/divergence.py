"""Steps that are rejected, as loss or gradient is not finite or the gradient's norm spikes. Decided on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from electra_lab.parallel.session import World
from registry.errors import DivergedError

Policy = Literal["stop", "skip"]

LEAD = 100  # taken steps before the first spike, and those that the running average of the norms remembers


class Watch:
    """Decides which steps are taken, and remembers the first rejected one since the last log line.

    The host never waits for it. All ranks decide the same, as loss and norm are those of the global batch.

    factor   a norm above this multiple of the average is a spike; None for no limit
    average  of the norms of the taken steps: the mean of the first LEAD, then an exponential one with the same memory
    taken    number of steps in the average
    first    the first rejected step since the last log line, -1 if there is none
    spiked   whether it was a spike
    """

    def __init__(
        self,
        device: torch.device | None = None,
        factor: float | None = None,
        *,
        average: float = 0.0,
        taken: int = 0,
        first: int = -1,
        spiked: bool = False,
    ) -> None:
        self.factor = factor
        self.average = torch.tensor(average, dtype=torch.float64, device=device)
        self.taken = torch.tensor(taken, device=device)
        self.first = torch.tensor(first, device=device)
        self.spiked = torch.tensor(spiked, device=device)

    @torch.no_grad()
    def judge(self, finite: Tensor, norm: Tensor, overflow: Tensor | None, step: int) -> Tensor:
        """Return whether a step is taken.

        finite    whether loss and gradient are
        norm      of the gradient before clipping
        overflow  whether the loss scale of fp16 was too large, which skips the step without rejecting it
        """
        taken, spike = finite, torch.zeros_like(finite)
        if self.factor is not None:
            norm = norm.double()
            spike = finite & (self.taken >= LEAD) & (norm > self.factor * self.average)
            taken = finite & ~spike
            mean = self.average + (norm - self.average) / (self.taken + 1).clamp(max=LEAD)
            self.average = torch.where(taken, mean, self.average)
            self.taken = self.taken + taken
        new = ~taken & (self.first < 0)
        if overflow is not None:
            new = new & ~overflow
        self.first = torch.where(new, step, self.first)
        self.spiked = torch.where(new, spike, self.spiked)
        return taken

    def forget(self) -> None:
        """Begin a new window, at a log line."""
        self.first, self.spiked = torch.full_like(self.first, -1), torch.zeros_like(self.spiked)

    def state(self) -> dict[str, Any]:
        """Return it as numbers for a checkpoint. The host waits for the device."""
        numbers = {"average": float(self.average), "taken": int(self.taken)}
        return {**numbers, "first": int(self.first), "spiked": bool(self.spiked)}

    @classmethod
    def from_state(
        cls, state: Mapping[str, Any], device: torch.device | None = None, factor: float | None = None
    ) -> Watch:
        return cls(device, factor, **state)


@torch.no_grad()
def non_finite_parameters(module: nn.Module, world: World) -> list[str]:
    """Return the names of the parameters that are not finite. All ranks must call it."""
    named = {name: parameter.detach() for name, parameter in module.named_parameters()}
    own = {name: p.to_local() if hasattr(p, "to_local") else p for name, p in named.items()}
    wrong = world.sum({name: (~p.isfinite()).sum() for name, p in own.items()})
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
    """Return the error for steps that were not taken; the weights are sound.

    number, first  their number since the last log line, and the first of them, from 0
    step           steps done
    limit          steps rejected in total, and their largest allowed number
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
        f"step {step:,}: {what}. They were not taken, so no weight is damaged.{over} Lower "
        f"train.learning_rate, lengthen the warm-up (schedules.learning_rate.warmup_steps), or {cure}."
    )
