"""One optimizer step: prepare it on the host, compute it on the device."""

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from electra_lab.model.long_rows import documents_at_most
from electra_lab.training.execution import LossScale, Precision, Watch, autocast, uncompiled
from electra_lab.training.random import EVALUATION, Keys, Streams, seed_global
from electra_lab.training.scheduled import Configured, Schedules
from registry import Backbone, Batch, Losses, Objective, Term
from registry.contracts.objective import ALONE

GENERATOR, DISCRIMINATOR = NETWORKS = ("generator", "discriminator")


class Learner:
    """An objective, with everything except its weights that changes from step to step.

    world           processes that train the objective
    module          callable module: the objective, or DDP around it
    updating        True during an update of the weights; if it fails, some have changed and others have not
    encoders        backbones that know the documents and the padding of a batch: those that do not make rows longer
    keys            keys of the prepared step's random numbers, on the device
    memory_updates  new values of the objective's row memory, for each micro-batch
    components      masking strategy and sampler with their options
    generator_rate  scheduled factor of the generator's learning rate, for groups of `by_network`
    """

    generator_rate: float | Tensor = 1.0

    def __init__(self, objective: Objective, schedules: Schedules | None = None) -> None:
        self.objective, self.schedules = objective, schedules or Schedules((), 1)
        self.world, self.updating = ALONE, False
        self.module: nn.Module = objective
        self.keys = Keys()
        self.memory_updates: list[Mapping[str, Tensor]] = []
        self.components: Sequence[Configured] = ()
        self.changing = [module for module in objective.modules() if callable(getattr(module, "at_step", None))]
        # A row that a network makes longer has more padding than its batch knows.
        encoders = [module for module in objective.modules() if isinstance(module, Backbone)]
        self.encoders = [encoder for encoder in encoders if encoder.length_multiple == 1]

    def at_step(self, seed: int, step: int, examples: NDArray[np.int64] | None = None) -> None:
        """Prepare for a step: seed torch's generator, set scheduled numbers, let components draw their own numbers.

        examples  example ids of the batch, for `gradients`: the indices of its rows in the global batch
        """
        seed_global(seed, step, self.world.rank)
        self.keys.fill(seed, step, np.zeros(0, dtype=np.int64) if examples is None else examples)
        self.schedules.at_step(step)
        for module in self.changing:
            # The objective comes first: it may freeze a network, which is then in eval mode and does not change.
            if module is self.objective or module.training:
                module.at_step(seed, step)  # type: ignore[operator]

    def to(self, device: torch.device) -> None:
        """Move the numbers that change from step to step to the device of the weights."""
        self.keys.to(device)
        self.schedules.to(device)

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
    def remember(self, batch: Batch, accepted: Bool[Tensor, ""]) -> None:
        """Write the updates of a step's rows into the objective's memory, if the step was accepted.

        The memory is the same on all ranks. If a row is in the global batch twice, the later update counts.
        """
        memory = self.objective.row_memory
        if not memory or batch.row_ids is None:
            return
        rows = self.world.gather(batch.row_ids)
        # All copies of a row write the update of the last one, as the order of writes is not defined.
        order = rows.argsort(stable=True)
        last = order[torch.searchsorted(rows[order], rows, right=True) - 1]
        for name, memory_rows in memory.items():
            updates = self.world.gather(torch.cat([update[name] for update in self.memory_updates]))
            memory_rows[rows] = torch.where(accepted, updates[last].to(memory_rows.dtype), memory_rows[rows])

    def losses(self, batch: Batch, rng: Streams, precision: Precision) -> Losses:
        """Return the losses of one batch."""
        device, counts = batch.tokens.device, batch.document_counts
        bounded: AbstractContextManager[None] = nullcontext()
        if counts is not None:
            bounded = documents_at_most(counts, self.encoders, device, batch.tokens.shape[1])
        for encoder in self.encoders:
            encoder.full_mask = batch.attention_mask if batch.full else None
        with autocast(device, precision), bounded:
            losses: Losses = self.module(batch, rng)
        return losses


@dataclass(frozen=True)
class StepResult:
    """The result of a step, as tensors on the device that the host has not read."""

    sums: Mapping[str, Tensor]  # of each term over the global batch, as are counts and weights
    counts: Mapping[str, Tensor]
    weights: Mapping[str, float | Tensor]
    gradient_norm: Tensor  # before clipping
    accepted: Tensor  # loss and gradient are finite, and the gradient does not spike; otherwise no weight changes
    norms: Mapping[str, Tensor] = field(default_factory=dict)  # by network, if each is clipped by its own norm

    def clipped_norm(self, clip_norm: float) -> Tensor:
        """Return the norm of the gradient after clipping."""
        largest = min(clip_norm, torch.finfo(self.gradient_norm.dtype).max)  # torch refuses a bound beyond its type
        if not self.norms:
            return self.gradient_norm.clamp(max=largest)
        return _together([norm.clamp(max=largest) for norm in self.norms.values()])


def prepare(
    learner: Learner,
    optimizer: Optimizer,
    examples: NDArray[np.int64],
    *,
    seed: int,
    step: int,
    rate: float,
    watch: Watch | None = None,
) -> None:
    """Prepare for a step, on the host: everything that depends on its number is written where `compute` reads it.

    examples  example ids of the batch
    rate      factor of the learning rates of all parameter groups
    """
    learner.at_step(seed, step, examples)
    for group in optimizer.param_groups:
        factor = float(learner.generator_rate) if group.get("network") == GENERATOR else 1.0
        # Kernels read rates from the device in float32, and all paths have the same numbers.
        rounded = float(np.float32(group["initial_lr"] * rate * factor))
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rounded)
        else:
            group["lr"] = rounded
    if watch is not None:
        watch.step.fill_(step)


def training_step(
    learner: Learner,
    optimizer: Optimizer,
    batch: Batch,
    *,
    seed: int,
    step: int,
    rate: float,
    watch: Watch | None = None,
    **options: Any,
) -> StepResult:
    """Do one optimizer step on one global batch: `prepare`, then `compute` with its options."""
    learner.to(batch.tokens.device)
    examples = batch.example_ids.cpu().numpy()
    prepare(learner, optimizer, examples, seed=seed, step=step, rate=rate, watch=watch)
    return compute(learner, optimizer, batch, watch=watch, **options)


def compute(
    learner: Learner,
    optimizer: Optimizer,
    batch: Batch,
    *,
    clip_norm: float,
    micro_batch_size: int,
    precision: Precision,
    scale: LossScale | None = None,
    watch: Watch | None = None,
) -> StepResult:
    """Forward, backward and update on one global batch, of which this rank has its part.

    Masks, draws and the losses' divisors do not depend on how the batch is split. Dropout and LSH rotations do, as
    libraries draw them from torch's global generator, once per micro-batch. A step whose loss or gradient is not finite
    leaves weights and optimizer unchanged. The host decides nothing here, does not wait for the device, and passes no
    number that depends on the step, so that the operations can be recorded once and replayed.

    scale  factor of the loss, for fp16, which adapts to overflows
    watch  detector of spikes in the gradient's norm, which rejects these steps, too
    """
    # Forward and backward
    sums, counts, weights = gradients(learner, batch, micro_batch_size, precision, scale)
    # The optimizer has every parameter that learns; searching the modules for them takes longer.
    parameters = parameters_of(optimizer)
    if scale is not None:
        scale.unscale(parameters)
    norm, norms = clip(optimizer, clip_norm, batch.tokens.device)
    # Decide on the device whether the step is accepted
    sound = torch.stack(list(sums.values())).isfinite().all()
    accepted = norm.isfinite() & sound
    overflow = scale.update(sound, norm.isfinite()) if scale is not None else None
    if watch is not None:
        accepted = watch.judge(accepted, norm, overflow)
    # Update
    learner.updating = True
    update(optimizer, accepted)
    learner.remember(batch, accepted)
    learner.updating = False
    optimizer.zero_grad(set_to_none=True)
    return StepResult(sums, counts, weights, norm, accepted, norms)


def gradients(
    learner: Learner, batch: Batch, micro_batch_size: int, precision: Precision, scale: LossScale | None
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, float | Tensor]]:
    """Add the gradients of a step to the parameters; returns sums, counts and weights of the terms.

    The learner has prepared for the step.
    """
    objective, world = learner.objective, learner.world
    parts: list[tuple[Batch, Streams]] = []
    for start in range(0, len(batch), micro_batch_size):
        rows = slice(start, start + micro_batch_size)
        parts.append((batch[rows], learner.keys.streams(batch.example_ids[rows], rows)))
    # Counts first: the sums of each micro-batch are divided by those of the whole batch.
    totals = None
    if len(parts) * world.size > 1:
        counted = [objective.counts(part, rng) for part, rng in parts]
        totals = world.sum(_total(counted))

    # Forward and backward of each micro-batch; ranks exchange gradients in the last one alone.
    sums, counts = dict[str, Tensor](), dict[str, Tensor]()
    learner.memory_updates.clear()
    for part, rng in parts:
        world.synchronize(learner.module, part is parts[-1][0])
        losses = learner.losses(part, rng, precision)
        learner.memory_updates.append(losses.memory)
        terms = losses.terms
        backward(terms, totals, scale)
        sums = _total([sums, {name: term.sum.detach() for name, term in terms.items()}])
        counts = _total([counts, {name: term.count for name, term in terms.items()}])

    return world.sum(sums), totals or counts, {name: term.weight for name, term in terms.items()}


def backward(
    terms: Mapping[str, Term], counts: Mapping[str, Tensor] | None = None, scale: LossScale | None = None
) -> None:
    """Add the gradients of the weighted terms, each divided by its count in `counts`, by default the term's count."""
    divisors = counts or {name: term.count for name, term in terms.items()}
    loss = torch.stack([t.weight * t.sum / divisors[name].clamp(min=1) for name, t in terms.items()]).sum()
    (loss if scale is None else loss * scale.scale).backward()  # type: ignore[no-untyped-call]


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor that may be divided over ranks, on each rank."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return the parameters of all groups."""
    parameters: list[nn.Parameter] = []
    for group in optimizer.param_groups:
        parameters += group["params"]
    return parameters


def by_network(optimizer: Optimizer, generator: Set[nn.Parameter], rate: float, *, clip_each: bool) -> None:
    """Split the optimizer's groups by network. Parameters that both networks share are the generator's.

    rate       factor of the generator's learning rate
    clip_each  True to clip the gradient of each network by its own norm
    """
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        for network, factor in ((GENERATOR, rate), (DISCRIMINATOR, 1.0)):
            parameters = [p for p in group["params"] if (p in generator) == (network == GENERATOR)]
            if parameters:
                marked = {"network": network, "clipped_with": network if clip_each else ""}
                groups.append({**group, **marked, "params": parameters, "lr": group["lr"] * factor})
    optimizer.param_groups[:] = groups


def clip(optimizer: Optimizer, clip_norm: float, device: torch.device) -> tuple[Tensor, dict[str, Tensor]]:
    """Clip the gradients to a norm, together or by network; returns their norm before, and that of each network."""
    parts: dict[str, list[nn.Parameter]] = {}
    for group in optimizer.param_groups:
        parts.setdefault(group.get("clipped_with", ""), []).extend(group["params"])
    # A network without gradients, which does not learn yet, has a norm of zero on the host.
    norms = {name: whole(nn.utils.clip_grad_norm_(part, clip_norm)).to(device) for name, part in parts.items()}
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
def update(optimizer: Optimizer, accepted: Bool[Tensor, ""]) -> None:
    """Take the optimizer's step if `accepted`; otherwise weights and state do not change. The host does not wait.

    State that the first step creates begins at zero, by the contract of optimizers.
    """
    if is_fused(optimizer):
        optimizer.found_inf = (~accepted).float()  # type: ignore[attr-defined]
        optimizer.step()
        return
    learning = [parameter for parameter in parameters_of(optimizer) if parameter.grad is not None]
    before = []
    for parameter in learning:
        state = {key: value.clone() for key, value in optimizer.state.get(parameter, {}).items()}
        before.append((parameter.clone(), state))
    optimizer.step()
    for parameter, (weight, state) in zip(learning, before, strict=True):
        parameter.copy_(torch.where(accepted, parameter, weight))
        for key, value in optimizer.state[parameter].items():
            value.copy_(torch.where(accepted, value, state.get(key, torch.zeros_like(value))))


def _total(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    total: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return total
