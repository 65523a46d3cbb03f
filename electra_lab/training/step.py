"""One optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.optim import AdamW

from electra_lab.training.device import Precision, autocast
from electra_lab.training.random import Streams, seed_global
from registry.contracts import Batch, Losses, Term

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class StepResult:
    """Tensors on the device; nothing here has been read by the host.

    sums, counts and weights of each term over the global batch; gradient_norm before clipping; finite: the step was
    taken.
    """

    sums: Mapping[str, Tensor]
    counts: Mapping[str, Tensor]
    weights: Mapping[str, float]
    gradient_norm: Tensor
    finite: Tensor


def training_step(
    objective: nn.Module,
    optimizer: AdamW,
    batch: Batch,
    *,
    seed: int,
    step: int,
    learning_rate: float,
    clip_norm: float,
    micro_batch_size: int,
    precision: Precision,
) -> StepResult:
    """Forward, backward and update on one global batch.

    Masks, draws and the losses' divisors do not depend on how it is split; dropout and LSH rotations do, as libraries
    draw them from torch's global generator, once for each micro-batch.

    A step whose loss or gradient is not finite leaves weights and optimizer as they were, decided on the device.
    """
    prepare(objective, seed, step)
    device = batch.tokens.device
    parts = list(_split(batch, micro_batch_size))
    streams = [Streams(seed, step, part.examples) for part in parts]
    # Each micro-batch is divided by the counts of the whole batch, so these must be known before the first backward.
    known = None
    if len(parts) > 1:
        count: Callable[[Batch, Streams], dict[str, Tensor]] = objective.counts  # type: ignore[assignment]  # contract
        known = _total([count(part, rng) for part, rng in zip(parts, streams, strict=True)])

    sums: dict[str, Tensor] = {}
    counts: dict[str, Tensor] = {}
    for part, rng in zip(parts, streams, strict=True):
        with autocast(device, precision):
            terms: Mapping[str, Term] = objective(part, rng).terms
        backward(terms, known)
        sums = _total([sums, {name: term.sum.detach() for name, term in terms.items()}])
        counts = _total([counts, {name: term.count for name, term in terms.items()}])

    norm = nn.utils.clip_grad_norm_(objective.parameters(), clip_norm)
    finite = norm.isfinite() & torch.stack(list(sums.values())).isfinite().all()
    optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]  # read by the fused step, on the device
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return StepResult(sums, counts, {name: float(term.weight) for name, term in terms.items()}, norm, finite)


def losses_at(step: int, objective: nn.Module, batch: Batch, seed: int, precision: Precision) -> Losses:
    """The losses of one batch, as in that step."""
    prepare(objective, seed, step)
    with autocast(batch.tokens.device, precision):
        losses: Losses = objective.train()(batch, Streams(seed, step, batch.examples))
    return losses


def backward(terms: Mapping[str, Term], counts: Mapping[str, Tensor] | None = None) -> None:
    """Gradients of the weighted terms, each divided by its count in the global batch; without `counts` by its own."""
    divisors = counts or {name: term.count for name, term in terms.items()}
    loss = torch.stack([t.weight * t.sum / divisors[name].clamp(min=1) for name, t in terms.items()]).sum()
    loss.backward()  # type: ignore[no-untyped-call]


def prepare(objective: nn.Module, seed: int, step: int) -> None:
    """What changes from step to step beside the weights: torch's global generator, and what backbones draw."""
    seed_global(seed, step)
    for module in objective.modules():
        # The objective comes first and may freeze a network; what is frozen, in eval mode, does not change any more.
        if (module is objective or module.training) and callable(at_step := getattr(module, "at_step", None)):
            at_step(seed, step)


def _split(batch: Batch, size: int) -> Iterator[Batch]:
    for start in range(0, len(batch), size):
        yield batch[start : start + size]


def _total(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    total: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return total
