"""One optimizer step, and the numbers of components that change from step to step."""

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.optim import Optimizer

from electra_lab.model.long_rows import documents_at_most
from electra_lab.parallel.session import ALONE
from electra_lab.training.execution import LossScale, Precision, autocast, uncompiled
from electra_lab.training.random import EVALUATION, Streams, seed_global
from electra_lab.training.scheduled import Configured, Schedules
from registry import Backbone, Batch, Losses, Objective, Term

GENERATOR, DISCRIMINATOR = NETWORKS = ("generator", "discriminator")
LEAD = 100  # taken steps before the first spike, and those that the running average of the norms remembers


class Learner:
    """An objective with everything apart from its weights that changes from step to step.

    world     the processes that train it
    module    the module that is called: the objective, or DDP around it
    updating  an update of the weights has begun; if it fails, some have changed and others have not
    encoders  the backbones that use the number of documents in a batch
    memory_updates  what the objective remembers of the rows of this step, for each micro-batch
    components  the masking strategy and the sampler with their options
    generator_rate  scheduled factor of the generator's learning rate, for groups of `by_network`
    """

    generator_rate: float | Tensor = 1.0

    def __init__(self, objective: Objective, schedules: Schedules | None = None) -> None:
        self.objective, self.schedules = objective, schedules or Schedules((), 1)
        self.world, self.updating = ALONE, False
        self.module: nn.Module = objective
        self.memory_updates: list[Mapping[str, Tensor]] = []
        self.components: Sequence[Configured] = ()
        self._changing = [module for module in objective.modules() if callable(getattr(module, "at_step", None))]
        # A row that a network makes longer has more padding than its batch knows.
        encoders = [module for module in objective.modules() if isinstance(module, Backbone)]
        self.encoders = [encoder for encoder in encoders if encoder.length_multiple == 1]

    def at_step(self, seed: int, step: int) -> None:
        """Prepare for a step: seed torch's generator, set scheduled numbers, let components draw their own numbers."""
        seed_global(seed, step, self.world.rank)
        self.schedules.at_step(step)
        for module in self._changing:
            # The objective comes first and may freeze a network; a frozen one, in eval mode, no longer changes.
            if module is self.objective or module.training:
                module.at_step(seed, step)  # type: ignore[operator]

    @property
    def group(self) -> int:
        """The rows that a loss couples: parts of a batch are multiples of it."""
        return self.objective.group

    @torch.no_grad()
    def be_after(self, seed: int, step: int) -> None:
        """Repeat `at_step` for an earlier step, without changing weights or buffers."""
        tensors = [*self.objective.parameters(), *self.objective.buffers()]
        present = [tensor.clone() for tensor in tensors]
        self.at_step(seed, step)  # may copy the weights of one network to another
        for tensor, value in zip(tensors, present, strict=True):
            tensor.copy_(value)

    @contextmanager
    def evaluating(self, seed: int) -> Iterator[None]:
        """Put the objective in eval mode with the final scheduled numbers.

        Evaluations are not compiled: each split ends with a batch of another size, and compiling for it would take
        longer than all evaluations.
        """
        was_training = self.objective.training
        self.objective.eval()
        seed_global(seed, EVALUATION)
        self.schedules.at_end()
        try:
            with uncompiled(), self.world.gathered(self.objective):
                yield
        finally:
            self.objective.train(was_training)

    @torch.no_grad()
    def remember(self, batch: Batch, taken: Bool[Tensor, ""]) -> None:
        """Write the updates of a step's rows into the objective's memory, unless the step was not taken.

        The memory is the same on all ranks. Of a row that is in the global batch twice, the later one counts.
        """
        memory = self.objective.row_memory
        if not memory or batch.row_ids is None:
            return
        rows = self.world.gather(batch.row_ids)
        # All places of one row write the update of the last of them, as the order of writes is not defined.
        order = rows.argsort(stable=True)
        last = order[torch.searchsorted(rows[order], rows, right=True) - 1]
        for name, held in memory.items():
            new = self.world.gather(torch.cat([update[name] for update in self.memory_updates]))
            held[rows] = torch.where(taken, new[last].to(held.dtype), held[rows])

    def losses(self, batch: Batch, seed: int, step: int, precision: Precision) -> Losses:
        """Return the losses of one batch."""
        device, counts = batch.tokens.device, batch.document_counts
        apart = (
            documents_at_most(counts, self.encoders, device, batch.tokens.shape[1])
            if counts is not None
            else nullcontext()
        )
        with autocast(device, precision), apart:
            losses: Losses = self.module(batch, Streams(seed, step, batch.example_ids))
        return losses


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
    ) -> Self:
        return cls(device, factor, **state)


@dataclass(frozen=True)
class StepResult:
    """The result of a step, as tensors on the device that the host has not read."""

    sums: Mapping[str, Tensor]  # of each term over the global batch, as are counts and weights
    counts: Mapping[str, Tensor]
    weights: Mapping[str, float]
    gradient_norm: Tensor  # before clipping
    finite: Tensor  # the step was taken: loss and gradient are finite, and the gradient does not spike
    norms: Mapping[str, Tensor] = field(default_factory=dict)  # by network, if each is clipped by its own norm

    def clipped_norm(self, clip_norm: float) -> Tensor:
        """Return the norm of the gradient after clipping."""
        largest = min(clip_norm, torch.finfo(self.gradient_norm.dtype).max)  # torch refuses a bound beyond its type
        if not self.norms:
            return self.gradient_norm.clamp(max=largest)
        return _together([norm.clamp(max=largest) for norm in self.norms.values()])


def training_step(
    learner: Learner,
    optimizer: Optimizer,
    batch: Batch,
    *,
    seed: int,
    step: int,
    rate: float,
    clip_norm: float,
    micro_batch_size: int,
    precision: Precision,
    scale: LossScale | None = None,
    watch: Watch | None = None,
) -> StepResult:
    """Forward, backward and update on one global batch, of which this rank has its part.

    Masks, draws and the losses' divisors do not depend on how the batch is split. Dropout and LSH rotations do, as
    libraries draw them from torch's global generator, once per micro-batch. A step whose loss or gradient is not finite
    leaves weights and optimizer unchanged, without a wait for the device.

    rate   factor of the learning rate of each parameter group
    scale  of the loss, for fp16; it adapts to overflows
    watch  also rejects steps whose gradient spikes
    """
    # Forward and backward
    learner.at_step(seed, step)
    sums, counts, weights = gradients(learner, batch, seed, step, micro_batch_size, precision, scale)
    # The optimizer has every parameter that learns; searching the modules for them takes longer.
    parameters = parameters_of(optimizer)
    if scale is not None:
        scale.unscale(parameters)
    norm, norms = clip(optimizer, clip_norm, batch.tokens.device)
    # Decide on the device whether the step is taken
    sound = torch.stack(list(sums.values())).isfinite().all()
    finite = norm.isfinite() & sound
    overflow = scale.update(sound, norm.isfinite()) if scale is not None else None
    if watch is not None:
        finite = watch.judge(finite, norm, overflow, step)
    # Update
    for group in optimizer.param_groups:
        own = float(learner.generator_rate) if group.get("network") == GENERATOR else 1.0
        group["lr"] = group["initial_lr"] * rate * own
    learner.updating = True
    update(optimizer, finite)
    learner.remember(batch, finite)
    learner.updating = False
    optimizer.zero_grad(set_to_none=True)
    return StepResult(sums, counts, weights, norm, finite, norms)


def gradients(
    learner: Learner,
    batch: Batch,
    seed: int,
    step: int,
    micro_batch_size: int,
    precision: Precision,
    scale: LossScale | None,
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, float]]:
    """Add the gradients of a step to the parameters; returns sums, counts and weights of the terms.

    The learner has prepared for the step.
    """
    objective, world, starts = learner.objective, learner.world, range(0, len(batch), micro_batch_size)
    parts = [batch[start : start + micro_batch_size] for start in starts]
    # Each micro-batch is divided by the counts of the whole batch, so these must be known before the first backward.
    known = None
    if len(parts) * world.size > 1:
        counted = [objective.counts(part, Streams(seed, step, part.example_ids)) for part in parts]
        known = world.sum(_total(counted))

    sums: dict[str, Tensor] = {}
    counts: dict[str, Tensor] = {}
    learner.memory_updates.clear()
    for part in parts:
        world.synchronize(learner.module, part is parts[-1])
        losses = learner.losses(part, seed, step, precision)
        learner.memory_updates.append(losses.memory)
        terms = losses.terms
        backward(terms, known, scale)
        sums = _total([sums, {name: term.sum.detach() for name, term in terms.items()}])
        counts = _total([counts, {name: term.count for name, term in terms.items()}])

    return world.sum(sums), known or counts, {name: float(term.weight) for name, term in terms.items()}


def backward(
    terms: Mapping[str, Term], counts: Mapping[str, Tensor] | None = None, scale: LossScale | None = None
) -> None:
    """Add the gradients of the weighted terms, each divided by its count in the global batch, or else by its own."""
    divisors = counts or {name: term.count for name, term in terms.items()}
    loss = torch.stack([t.weight * t.sum / divisors[name].clamp(min=1) for name, t in terms.items()]).sum()
    (loss if scale is None else loss * scale.scale).backward()  # type: ignore[no-untyped-call]


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor that may be divided over ranks, on each of them."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return the parameters of all groups."""
    parameters: list[nn.Parameter] = []
    for group in optimizer.param_groups:
        parameters += group["params"]
    return parameters


def by_network(optimizer: Optimizer, generator: Set[nn.Parameter], rate: float, *, apart: bool) -> None:
    """Split the optimizer's groups by network. Parameters that both networks share are the generator's.

    rate   factor of the generator's learning rate
    apart  clip the gradient of each network by its own norm
    """
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        for network, factor in ((GENERATOR, rate), (DISCRIMINATOR, 1.0)):
            own = [p for p in group["params"] if (p in generator) == (network == GENERATOR)]
            if own:
                marked = {"network": network, "clipped_with": network if apart else ""}
                groups.append({**group, **marked, "params": own, "lr": group["lr"] * factor})
    optimizer.param_groups[:] = groups


def clip(optimizer: Optimizer, clip_norm: float, device: torch.device) -> tuple[Tensor, dict[str, Tensor]]:
    """Clip the gradients to a norm, together or by network; returns their norm before, and that of each network."""
    parts: dict[str, list[nn.Parameter]] = {}
    for group in optimizer.param_groups:
        parts.setdefault(group.get("clipped_with", ""), []).extend(group["params"])
    # A network without gradients, which does not learn yet, has a norm of zero on the host.
    norms = {name: whole(nn.utils.clip_grad_norm_(own, clip_norm)).to(device) for name, own in parts.items()}
    if "" in norms:
        return norms[""], {}
    return _together(list(norms.values())), norms


def _together(norms: list[Tensor]) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def is_fused(optimizer: Optimizer) -> bool:
    """Return True if the optimizer's kernels skip a step by themselves, by a flag that they read on the device."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


@torch.no_grad()
def update(optimizer: Optimizer, finite: Bool[Tensor, ""]) -> None:
    """Take the optimizer's step if `finite`; otherwise weights and state do not change. The host does not wait.

    State that the first step creates begins at zero, by the contract of optimizers.
    """
    if is_fused(optimizer):
        optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
        optimizer.step()
        return
    learning = [parameter for parameter in parameters_of(optimizer) if parameter.grad is not None]
    before = []
    for parameter in learning:
        state = {key: value.clone() for key, value in optimizer.state.get(parameter, {}).items()}
        before.append((parameter.clone(), state))
    optimizer.step()
    for parameter, (weight, state) in zip(learning, before, strict=True):
        parameter.copy_(torch.where(finite, parameter, weight))
        for key, value in optimizer.state[parameter].items():
            value.copy_(torch.where(finite, value, state.get(key, torch.zeros_like(value))))


def _total(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    total: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return total
