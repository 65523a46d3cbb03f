"""The training loop: a generator of records. Instead of callbacks, its consumer saves, prints or stops between them."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from electra_lab.training.evaluation import Accumulate, Evaluation, evaluation
from electra_lab.training.execution import (
    LossScale,
    Precision,
    Watch,
    non_finite_parameters,
    non_finite_weights,
    rejected_steps,
)
from electra_lab.training.step import NETWORKS, Learner, StepResult, compute, prepare
from registry import Batch, Batches, BatchSizes, Flops, Split

Policy = Literal["stop", "skip"]


@dataclass(frozen=True)
class Settings:
    """The parts of a config that the loop needs, as numbers."""

    seed: int
    steps: int
    batch_size: int
    micro_batch_size: int
    learning_rate: float
    rate: Callable[[int, int], float]  # factor of the learning rate, by (step, steps)
    clip_norm: float
    precision: Precision
    log_every: int
    evaluate_every: int | None
    evaluate_batch_size: int
    on_non_finite: Policy
    flops: Flops  # of training
    examples: int  # number of test rows to return
    skip_limit: int | None = None  # under skip, the largest number of rejected steps in total
    spike: float | None = None  # see Watch
    evaluate_at_start: bool = False
    warmup: BatchSizes | None = None  # rows of each step, if they begin below batch_size

    @property
    def batches(self) -> BatchSizes:
        """The rows of each step."""
        return self.warmup or BatchSizes(self.batch_size)


@dataclass
class Window:
    """The steps since the last log line: summed on the device, read by the host once.

    totals: accepted steps, their gradient norms, then sum, count and weighted sum of each term, then the norm of each
    network if each is clipped by its own, then clipped norms. Part of a checkpoint, so that a log line after a resume
    is the one that an uninterrupted run writes.
    """

    steps: int = 0
    names: tuple[str, ...] = ()
    totals: Tensor | None = None

    def add(self, result: StepResult, clip_norm: float = math.inf) -> None:
        self.names = tuple(result.sums)
        numbers = [result.accepted, result.gradient_norm]
        for name, total in result.sums.items():
            numbers += [total, result.counts[name], result.weights[name] * total.double()]
        numbers += [result.norms[network] for network in NETWORKS if result.norms]
        numbers.append(result.clipped_norm(clip_norm))
        values = torch.stack([number.double() for number in numbers])
        added = torch.where(result.accepted, values, 0.0)
        if self.totals is None:
            self.totals = added
        else:
            self.totals.add_(added)
        self.steps += 1

    def clear(self) -> None:
        """Begin a new window, at a log line."""
        self.steps = 0
        if self.totals is not None:
            self.totals.zero_()

    def read(self) -> tuple[int, dict[str, float]]:
        """Return the number of skipped steps, and the means of the window. The one host sync."""
        accepted, norm, *terms, clipped = self.totals.tolist() if self.totals is not None else (0.0, 0.0, 0.0)
        terms, per_network = terms[: 3 * len(self.names)], terms[3 * len(self.names) :]
        # A term without a count has no mean: the objective is in another stage.
        parts = zip(self.names, terms[::3], terms[1::3], terms[2::3], strict=True)
        losses, loss = {}, 0.0
        for name, sum_, count, weighted in parts:
            if count:
                losses[f"{name}_loss"] = sum_ / count
                loss += weighted / count
        if not accepted:  # no step of this window was accepted; do not report a loss of 0
            loss = norm = clipped = math.nan
            per_network = [math.nan] * len(per_network)
        norms = {"gradient_norm": norm, "clipped_gradient_norm": clipped}
        norms |= {f"{network}_gradient_norm": total for network, total in zip(NETWORKS, per_network, strict=False)}
        means = {name: total / max(accepted, 1) for name, total in norms.items()}
        return self.steps - int(accepted), {"loss": loss, **losses, **means}

    def state(self) -> dict[str, Any]:
        if self.totals is None or not self.steps:
            return {"steps": 0, "names": (), "totals": None}
        return {"steps": self.steps, "names": self.names, "totals": self.totals.tolist()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        names, totals = tuple(state["names"]), state["totals"]
        return cls(state["steps"], names, None if totals is None else torch.tensor(totals, dtype=torch.float64))


@dataclass
class Run:
    """Everything that training changes: the content of a checkpoint."""

    learner: Learner
    optimizer: Optimizer
    step: int = 0
    tokens: int = 0  # positions of all batches so far, padding included
    skipped: int = 0  # steps that were not accepted, up to the last log line
    rejected: int = 0  # skipped steps that were not overflows of fp16
    tolerated: int = 0  # rejected steps of the window before a resume, which another policy allowed
    window: Window = field(default_factory=Window)
    scale: LossScale | None = None  # for fp16
    watch: Watch = field(default_factory=Watch)
    # The part of a step that the device does, which may be recorded and replayed.
    compute: Callable[[Run, Settings, Batch], StepResult] = field(default_factory=lambda: compute_step)

    def __post_init__(self) -> None:
        for group in self.optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])  # torch's name for the rate that schedules multiply

    def begin(self, settings: Settings, device: torch.device) -> None:
        """Move loss scale and watch to the device; a resume may have another device, precision or policy."""
        self.learner.to(device)
        if self.window.totals is not None:
            self.window.totals = self.window.totals.to(device)
        held = self.scale.state() if self.scale else {}
        self.scale = LossScale.from_state(held, device) if settings.precision == "fp16" else None
        self.watch = Watch.from_state(self.watch.state(), device, settings.spike)
        if settings.on_non_finite != "skip":
            self.tolerated = self._rejected()
            self.watch.forget()

    def _rejected(self) -> int:
        """Return the number of steps rejected since the last log line. The host waits for the device."""
        return self.window.read()[0] - (int(self.scale.overflows) if self.scale else 0)

    def refuse_diverged(self, settings: Settings, *, weights: bool = False) -> None:
        """Raise DivergedError if the policy calls for it. All ranks must call it; the host waits for the device.

        weights  True to check the weights even if every step since the last log line was accepted
        """
        number = self._rejected() - self.tolerated
        if (number or weights) and (names := non_finite_parameters(self.learner.objective, self.learner.world)):
            raise non_finite_weights(names, self.step)
        limit, total = settings.skip_limit, self.rejected + number
        skips = settings.on_non_finite == "skip"
        if not number or (skips and (limit is None or total <= limit)):
            return
        raise rejected_steps(
            number,
            int(self.watch.first),
            bool(self.watch.spiked),
            self.step,
            factor=settings.spike,
            limit=(total, limit) if skips and limit is not None else None,
        )

    def state(self, settings: Settings) -> dict[str, Any]:
        """Return the state that a checkpoint stores besides the tensors. Raises DivergedError, by the policy."""
        self.refuse_diverged(settings)
        return {
            "tokens": self.tokens,
            "skipped": self.skipped,
            "window": self.window.state(),
            "trouble": {"rejected": self.rejected, **self.watch.state()},
            **({"loss_scale": self.scale.state()} if self.scale else {}),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.step, self.tokens, self.skipped = state["step"], state["tokens"], state["skipped"]
        self.window = Window.from_state(state["window"])
        trouble = dict(state["trouble"])
        self.rejected = trouble.pop("rejected")
        self.watch = Watch.from_state(trouble)
        scale = state.get("loss_scale")
        self.scale = LossScale.from_state(scale, torch.device("cpu")) if scale else None


@dataclass(frozen=True)
class Record:
    """A line of metrics.jsonl, or without `values` a pause after a step or between batches of an evaluation."""

    step: int
    values: dict[str, Any] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    evaluating: bool = False  # a pause within an evaluation, which may be abandoned there


def splits_at(step: int, settings: Settings, *, tested: bool) -> list[Split]:
    """Return the splits that are evaluated after a step. `tested`: there is text for the test."""
    last = step == settings.steps
    due = last or (settings.evaluate_every and step % settings.evaluate_every == 0)
    due = due if step else settings.evaluate_at_start
    splits: list[Split] = ["validation"] if due else []
    return [*splits, "test"] if last and tested else splits


@dataclass(frozen=True)
class Training:
    """A run, and everything that training reads.

    batches     batches of training; `held_out` has the splits that are evaluated meanwhile
    accumulate  factory of the accumulator of a split's metrics
    """

    run: Run
    settings: Settings
    batches: Batches
    held_out: Mapping[str, Batches]
    accumulate: Accumulate
    device: torch.device


def train(training: Training, *, evaluated: bool = True) -> Iterator[Record]:
    """Train from run.step to settings.steps, yielding after every step, before its evaluations. Raises DivergedError.

    Validation is evaluated every `evaluate_every` steps and after the last step, and before the first one if
    `evaluate_at_start` is set; the test after the last step alone.
    Between two records the consumer may save a checkpoint of `run`, or stop. With several processes, each computes its
    part of every batch. All ranks yield the same records, except that evaluations have no pauses and only rank 0 has
    their numbers.

    evaluated  False if training was stopped before the evaluations that are due after run.step
    """
    run, settings, device = training.run, training.settings, training.device
    if not evaluated:
        run.learner.be_after(settings.seed, max(run.step - 1, 0))
        yield from _evaluated(training)
    started, since = time.perf_counter(), run.tokens
    only_last = settings.log_every >= settings.steps  # then the first step has a line, too: a curve needs two points
    run.learner.objective.train()
    run.begin(settings, device)
    while run.step < settings.steps:
        _, rate = advance(run, settings, training.batches, device)
        step = run.step
        # The log line, which makes the host wait for the device
        if step % settings.log_every == 0 or step == settings.steps or (only_last and step == 1):
            run.refuse_diverged(settings)
            values = _line(run, settings, rate, device)
            seconds = time.perf_counter() - started
            speed = {"tokens_per_second": (run.tokens - since) / seconds, "seconds": seconds}
            yield Record(step, {**values, **speed})
            started, since = time.perf_counter(), run.tokens
        yield Record(step)
        # Evaluations, after the consumer had a chance to save
        if splits_at(step, settings, tested=False):
            run.refuse_diverged(settings, weights=True)
            yield from _evaluated(training)
            started, since = time.perf_counter(), run.tokens


def advance(run: Run, settings: Settings, batches: Batches, device: torch.device) -> tuple[StepResult, float]:
    """Do the next step; returns its result, and the factor of its learning rate."""
    batch = batch_of(run.step, run, settings, batches, device)
    rate = settings.rate(run.step, settings.steps)
    examples = examples_of(run.step, run, settings)
    prepare(run.learner, run.optimizer, examples, seed=settings.seed, step=run.step, rate=rate, watch=run.watch)
    result = run.compute(run, settings, batch)
    run.step += 1
    run.tokens += batch.tokens.numel() * run.learner.world.size
    return result, rate


def compute_step(run: Run, settings: Settings, batch: Batch) -> StepResult:
    """Do the part of a step that the device does, which can be recorded, and add it to the window."""
    result = compute(
        run.learner,
        run.optimizer,
        batch,
        clip_norm=settings.clip_norm,
        micro_batch_size=settings.micro_batch_size,
        precision=settings.precision,
        scale=run.scale,
        watch=run.watch,
    )
    run.window.add(result, settings.clip_norm)
    return result


def examples_of(step: int, run: Run, settings: Settings) -> NDArray[np.int64]:
    """Return the example ids of this rank's rows of a step: their indices in the global batch."""
    size = settings.batches.at(step)
    return np.arange(size)[run.learner.world.part(size)]


def batch_of(step: int, run: Run, settings: Settings, batches: Batches, device: torch.device) -> Batch:
    """Return this rank's rows of a step."""
    part = run.learner.world.part(settings.batches.at(step))
    return batches.training_batch(settings.seed, step, settings.warmup or settings.batch_size, device, part=part)


def _line(run: Run, settings: Settings, rate: float, device: torch.device) -> dict[str, Any]:
    """Return the log line of the window, and begin a new one."""
    skipped, means = run.window.read()
    scale = run.scale.state() if run.scale else None
    run.skipped += skipped
    run.rejected += skipped - (scale["overflows"] if scale else 0)
    run.tolerated = 0
    run.window.clear()
    run.watch.forget()
    if run.scale:
        run.scale.forget()
    return {
        "step": run.step,
        "split": "train",
        **means,
        "learning_rate": settings.learning_rate * rate,
        **run.learner.schedules.values(run.step - 1),
        **({"batch_size": settings.batches.at(run.step - 1)} if settings.warmup else {}),
        "skipped_steps": run.skipped,
        **({"loss_scale": scale["scale"]} if scale else {}),
        "tokens": run.tokens,
        "flops": settings.flops.total(run.step),
        **peak_memory(device),
    }


def _evaluated(training: Training) -> Iterator[Record]:
    """Run the evaluations that are due after run.step."""
    run, settings = training.run, training.settings
    for split in splits_at(run.step, settings, tested="test" in training.held_out):
        started = time.perf_counter()
        for result in evaluation(
            run.learner,
            training.held_out[split],
            training.accumulate,
            seed=settings.seed,
            batch_size=settings.evaluate_batch_size,
            precision=settings.precision,
            device=training.device,
            examples=settings.examples if split == "test" else 0,
        ):
            if result is not None:
                facts = {"step": run.step, "split": split, "tokens": result.tokens}
                yield Record(run.step, {**facts, **result.metrics, "seconds": time.perf_counter() - started}, result)
            elif run.learner.world.size == 1:
                yield Record(run.step, evaluating=True)


def peak_memory(device: torch.device) -> dict[str, int]:
    """Return the peak memory so far in bytes, for a record: torch's on a GPU, else the process's resident memory.

    Empty on systems without this number. The host does not wait for the device.
    """
    if device.type == "cuda":
        return {"peak_memory_bytes": torch.cuda.max_memory_allocated(device)}
    if sys.platform == "darwin":
        import resource  # not on Windows

        return {"peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}
    with suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        if match := re.search(r"VmHWM:\s+(\d+) kB", status):  # ru_maxrss would be the parent's, if that is larger
            return {"peak_memory_bytes": 1024 * int(match[1])}
    return {}
