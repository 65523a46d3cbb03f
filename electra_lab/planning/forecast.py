"""The needs of a run: parameters, compute, memory and time, of networks that have been built."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice, pairwise
from statistics import fmean
from typing import Any

import torch
from torch import nn

from electra_lab.planning.memory import free_bytes, peak_bytes, shapes_only
from electra_lab.training.evaluation import Accumulate, evaluation
from electra_lab.training.execution import Precision
from electra_lab.training.graph import EAGER, Graph, record_steps
from electra_lab.training.loop import Run, Settings, advance, compute_step
from electra_lab.training.random import Streams
from electra_lab.training.step import backward, is_fused
from registry import Batch, Batches, Flops

SHORT = {"cpu": 3e11, "cuda": 1e14}  # FLOPs of a step that may be tried: about a second or two
SMALL = 4e9  # bytes of an experiment that may be tried on a CPU
FEWEST, TRIES, ENOUGH = 2, 30, 5.0  # timed steps at least and at most, and the seconds after which no other is begun
DISK = 2.5e8  # bytes a second of a checkpoint: looked through, hashed, written, and flushed to the disk
FREE = 0.6  # share of the free memory that tensors may take; allocators leave gaps, and kernels need some, too
UNCOUNTED = "known after `electra-lab prepare`, which counts the rows"


@dataclass(frozen=True)
class Forecast:
    """The needs of a run. Bytes are peaks of the tensors that exist at once; None if a component needs numbers."""

    vocabulary_size: int | None  # None if the tokenizer's options do not say
    parameters: dict[str, int]  # by network, `shared` and `total`
    parts: dict[str, dict[str, int]]  # embeddings, projection, backbone and heads of each network
    steps: int | None  # None if `train.epochs` decides and the rows are not counted yet
    epoch: int | None  # rows; None if the text is not tokenized yet
    flops: Flops
    paper_flops: Flops
    precision: Precision
    rows: int  # at a time
    state_bytes: int  # weights and the optimizer's state
    working_bytes: int | None  # training on a batch, micro-batch by micro-batch, gradients included
    evaluation_bytes: int | None  # evaluation of evaluate.batch_size rows
    evaluates_at_start: bool = False  # before the first step
    row_bytes: int = 0  # that the objective remembers of each training row

    @property
    def memory_bytes(self) -> int:
        """What the objective remembers of all training rows; 0 if they are not counted yet."""
        return self.row_bytes * (self.epoch or 0)

    @property
    def bytes(self) -> int | None:
        """The peak of everything."""
        if self.working_bytes is None or self.evaluation_bytes is None:
            return None
        return self.state_bytes + self.memory_bytes + max(self.working_bytes, self.evaluation_bytes)

    @property
    def total_flops(self) -> int | None:
        return None if self.steps is None else self.flops.total(self.steps)


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
                batch = self.rows(rows)
                rng = Streams.of(settings.seed, number, batch.example_ids)
                backward(learner.losses(batch, rng, settings.precision).terms)

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

        def look(training: bool) -> None:
            with torch.no_grad(), learner.evaluating(settings.seed):
                learner.objective.train(training)
                batch = self.rows(settings.evaluate_batch_size)
                learner.losses(batch, Streams.of(settings.seed, 0, batch.example_ids), settings.precision)

        with shapes_only():
            # Some encoders read the lengths of rows in evaluation, but not in training, which takes about the same.
            return peak_bytes(partial(look, False)) or peak_bytes(partial(look, True))

    def at_a_time(self, rows: int) -> "Workload":
        """Return the same with another micro-batch."""
        return replace(self, settings=replace(self.settings, micro_batch_size=rows))

    def fitting(self, device: torch.device) -> "Workload":
        """Return the same with the largest micro-batch whose tensors fit into the free memory, or else with one row."""
        free, state = free_bytes(device), self.state_bytes()
        for rows in parts_of(self.settings.batch_size, self.run.learner.group):
            tried = self.at_a_time(rows)
            if fits(state, tried.working_bytes(), free):
                break
        return tried


@dataclass(frozen=True)
class Duration:
    """The seconds of a training on this machine, extrapolated from some of its steps and evaluations."""

    step: float  # on average
    training: float  # all steps, and compiling
    evaluation: float
    saving: float

    @property
    def total(self) -> float:
        return self.training + self.evaluation + self.saving


def duration(
    run: Run,
    settings: Settings,
    train: Batches,
    held_out: Iterable[tuple[Batches, int]],
    accumulate: Accumulate,
    device: torch.device,
    *,
    saved: float,
    graph: Graph = "off",
) -> Duration:
    """Try the steps of each stage and some batches of each evaluation. The run cannot be trained afterwards.

    held_out  the batches of each split, and the number of rows to read of them in all evaluations
    saved     the bytes of all checkpoints
    graph     whether steps are recorded, as in the training, where most of them are replayed
    """
    # Steps
    run.learner.objective.train()
    run.begin(settings, device)
    record_steps(graph, run, settings, device, lambda _: None)  # the training says why it is not
    early = 1 if run.compute is compute_step else EAGER
    # Stages: the objective may have two, and batches of growing size are tried at the mean of their sizes.
    warmup = settings.batches.warmup
    begins = sorted({0, *(begin for begin in (settings.flops.first, warmup) if begin < settings.steps)})
    training = 0.0
    for first, end in pairwise([*begins, settings.steps]):
        tried_first = (first + end) // 2 if first < warmup else first

        def step(tried: int, first: int = tried_first, number: int = end - tried_first) -> None:
            run.step = first + tried % number
            advance(run, settings, train, device)
            if device.type == "cuda":
                torch.cuda.synchronize()

        initial, later = _times(map(step, count()), early)
        training += initial + later * max(end - first - early, 0)
    # Evaluations
    evaluating = 0.0
    for batches, rows in held_out:
        looked: Any = evaluation(
            run.learner, batches, accumulate, seed=settings.seed, batch_size=settings.evaluate_batch_size,
            precision=settings.precision, device=device,
        )  # fmt: skip
        with closing(looked):
            _, later = _times(islice(looked, -(-len(batches) // settings.evaluate_batch_size)))
        evaluating += later * rows / min(settings.evaluate_batch_size, len(batches))
    return Duration(training / settings.steps, training, evaluating, saved / DISK)


def _times(tries: Iterator[object], early: int = 1) -> tuple[float, float]:
    """Return the seconds of the first tries, which warm up, and the mean of the others, or of all if these are all."""
    times, began = list[float](), time.perf_counter()
    for _ in tries:
        times.append(time.perf_counter() - began)
        later = len(times) - early
        if later >= TRIES or (later >= FEWEST and sum(times[early:]) > ENOUGH):
            break
        began = time.perf_counter()
    return sum(times[:early]), fmean(times[early:] or times)


def obstacle(needs: Forecast, device: torch.device) -> str | None:
    """Return why no step is tried here, None if one can be."""
    if device.type == "cuda" and not torch.cuda.is_available():
        return "there is no CUDA device here"
    limit, flops = SHORT[device.type], needs.flops.per_step
    if flops > limit:
        return f"a step of {flops:.2g} FLOPs is too large to be tried; the limit is {limit:.0e}"
    size = needs.state_bytes + (needs.working_bytes or 0)
    if device.type == "cpu" and size > SMALL:
        return f"a step of {size / 1e9:.1f} GB is too large to be tried; the limit is {SMALL / 1e9:.0f} GB"
    if not fits(needs.state_bytes, needs.working_bytes, free_bytes(device)):
        return "there is not enough free memory to try a step"
    return None


def fits(state: float, working: float | None, free: float | None) -> bool:
    """Return whether state and tensors fit into the free memory, True if one of them is not known."""
    return working is None or free is None or state + working <= FREE * free


def parts_of(rows: int, group: int = 1) -> Iterator[int]:
    """Yield numbers of rows at a time that divide a batch evenly: all, then the largest up to half of it, and so on.

    group  all are multiples of it, and so is `rows`
    """
    size = rows
    while size:
        yield size
        size = max((part for part in range(group, size // 2 + 1, group) if rows % part == 0), default=0)


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
