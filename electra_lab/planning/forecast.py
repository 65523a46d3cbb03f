"""The needs of a run: parameters, compute, memory and time, of networks that have been built."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from electra_lab.planning.memory import free_bytes, peak_bytes, shapes_only
from electra_lab.training.device import Precision
from electra_lab.training.loop import Run, Settings
from electra_lab.training.step import backward, is_fused, training_step
from registry import Batch, Flops

SHORT = 3e11  # FLOPs of a step that may be tried
SMALL = 4e9  # bytes of an experiment that may be tried
FREE = 0.6  # share of the free memory that tensors may take; allocators leave gaps, and kernels need some, too


@dataclass(frozen=True)
class Forecast:
    """The needs of a run. Bytes are peaks of the tensors that exist at once; None if a component needs numbers."""

    vocabulary_size: int | None  # None if the tokenizer's options do not say
    parameters: dict[str, int]  # by network, `shared` and `total`
    parts: dict[str, dict[str, int]]  # embeddings, projection, backbone and heads of each network
    steps: int
    flops: Flops
    paper_flops: Flops
    precision: Precision
    rows: int  # at a time
    state_bytes: int  # weights and the optimizer's state
    working_bytes: int | None  # training on a batch, micro-batch by micro-batch, gradients included
    evaluation_bytes: int | None  # evaluation of evaluate.batch_size rows


@dataclass(frozen=True)
class Workload:
    """A run before its first step, and the size of its rows.

    For questions of memory, its networks were built inside `shapes_only`.
    """

    run: Run
    settings: Settings
    length: int  # of a row, in tokens
    vocabulary_size: int

    def rows(self, number: int) -> Batch:
        """Return rows of arbitrary tokens."""
        return rows_of(torch.full((number, self.length), self.vocabulary_size - 1))

    def state_bytes(self) -> int:
        """Return the bytes of the weights and of the optimizer's state."""
        total = 0
        for parameter in self.run.learner.objective.parameters():
            total += 4 * parameter.numel() + (_state_bytes(self.run, parameter) if parameter.requires_grad else 0)
        return total

    def working_bytes(self) -> int | None:
        """Return the peak bytes of training on a batch, gradients included; None if a component needs numbers."""
        settings, learner, optimizer = self.settings, self.run.learner, self.run.optimizer
        rows = settings.micro_batch_size

        def step(number: int) -> None:
            learner.at_step(settings.seed, number)
            for _ in range(2 if rows < settings.batch_size else 1):  # the second micro-batch finds gradients there
                backward(learner.losses(self.rows(rows), settings.seed, number, settings.precision).terms)

        peaks = []
        with shapes_only():
            for first in sorted({0, settings.flops.first}):  # the first step of each stage
                peaks.append(peak_bytes(partial(step, first)))
                learner.objective.zero_grad(set_to_none=True)
        known = [peak for peak in peaks if peak is not None]
        if len(known) < len(peaks):
            return None
        if not is_fused(optimizer):  # gradients, and copies to return to after a skipped step
            learning = [p for p in learner.objective.parameters() if p.requires_grad]
            known.append(sum(8 * p.numel() + _state_bytes(self.run, p) for p in learning))
        return max(known)

    def evaluation_bytes(self) -> int | None:
        """Return the peak bytes of an evaluation; None if a component needs numbers."""
        settings, learner = self.settings, self.run.learner

        def look() -> None:
            with torch.no_grad(), learner.evaluating(settings.seed):
                learner.losses(self.rows(settings.evaluate_batch_size), settings.seed, 0, settings.precision)

        with shapes_only():
            return peak_bytes(look)

    def at_a_time(self, rows: int) -> "Workload":
        """Return the same with another micro-batch."""
        return replace(self, settings=replace(self.settings, micro_batch_size=rows))

    def fitting(self, device: torch.device) -> "Workload":
        """Return the same with the largest micro-batch whose tensors fit into the free memory, or else with one row."""
        free, state = free_bytes(device), self.state_bytes()
        for rows in parts_of(self.settings.batch_size):
            tried = self.at_a_time(rows)
            if fits(state, tried.working_bytes(), free):
                break
        return tried

    def seconds(self, device: torch.device) -> float:
        """Return the seconds of the whole training, from the faster of two steps of each stage after a warm-up."""
        settings, shape = self.settings, (self.settings.batch_size, self.length)
        batch = rows_of(torch.randint(5, self.vocabulary_size, shape, device=device))
        step = partial(training_step, self.run.learner, self.run.optimizer, batch, seed=settings.seed, rate=0.0,
                       clip_norm=settings.clip_norm, precision=settings.precision,
                       micro_batch_size=settings.micro_batch_size)  # fmt: skip
        self.run.learner.objective.train()
        second = settings.flops.first  # the first step of the second stage
        stages = {0: second, second: settings.steps - second} if second else {0: settings.steps}
        total = 0.0
        for first, number in stages.items():
            times = []
            for _ in range(3):
                began = time.perf_counter()
                step(step=first)
                if device.type == "cuda":
                    torch.cuda.synchronize()
                times.append(time.perf_counter() - began)
            total += min(times[1:]) * number
        return total


def is_small(needs: Forecast) -> bool:
    """Return whether a step may be tried here."""
    return needs.flops.per_step <= SHORT and needs.state_bytes + (needs.working_bytes or 0) <= SMALL


def fits(state: float, working: float | None, free: float | None) -> bool:
    """Return whether state and tensors fit into the free memory, True if one of them is not known."""
    return working is None or free is None or state + working <= FREE * free


def parts_of(rows: int) -> Iterator[int]:
    """Yield numbers of rows at a time that divide a batch evenly: all, then the largest up to half of it, and so on."""
    size = rows
    while size:
        yield size
        size = max((part for part in range(1, size // 2 + 1) if rows % part == 0), default=0)


def parts_by_network(networks: Mapping[str, nn.Module]) -> dict[str, dict[str, int]]:
    """Count the parameters of each child of each network."""
    counts: dict[str, dict[str, int]] = {}
    for network, module in networks.items():
        counts[network] = {}
        for name, part in module.named_children():
            counts[network][name] = sum(p.numel() for p in part.parameters())
    return counts


def rows_of(tokens: torch.Tensor) -> Batch:
    """Return full rows of one segment."""
    real = torch.ones_like(tokens, dtype=torch.bool)
    return Batch(tokens, real, torch.zeros_like(tokens), torch.arange(len(tokens), device=tokens.device))


def _state_bytes(run: Run, parameter: nn.Parameter) -> int:
    size: int = run.optimizer.state_bytes(parameter)  # type: ignore[attr-defined]  # contract of optimizers
    return size
