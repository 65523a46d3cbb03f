"""The training loop: a generator of records. Nobody calls back; who wants to save, print or stop does so in between."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.optim import AdamW

from electra_lab.data.rows import Rows
from electra_lab.training.device import Precision
from electra_lab.training.evaluation import Evaluation, evaluate
from electra_lab.training.optimizer import learning_rate_at
from electra_lab.training.step import StepResult, training_step
from registry.contracts import Vocabulary
from registry.errors import DivergedError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Flops:
    """What training costs: `per_step`, but for the `first` steps, which cost `at_first` each."""

    per_step: int
    first: int = 0
    at_first: int = 0

    def total(self, steps: int) -> int:
        early = min(steps, self.first)
        return early * self.at_first + (steps - early) * self.per_step

    def steps(self, budget: float) -> int:
        """How many steps `budget` pays for."""
        if self.first and budget < self.total(self.first):
            return int(budget // self.at_first)
        return self.first + int((budget - self.total(self.first)) // self.per_step)


@dataclass(frozen=True)
class Plan:
    """What the loop needs to know of the config, in numbers."""

    seed: int
    steps: int
    batch_size: int
    micro_batch_size: int
    learning_rate: float
    warmup_steps: int
    clip_norm: float
    precision: Precision
    log_every: int
    evaluate_every: int | None
    evaluate_batch_size: int
    on_non_finite: Literal["stop", "skip"]
    flops: Flops
    examples: int


@dataclass
class Window:
    """The steps since the last log line: summed on the device, read by the host once.

    totals: taken steps, their gradient norms, then sum, count and weighted sum of each term. Part of a checkpoint, so
    that a log line after a resume is the one that an uninterrupted run writes.
    """

    steps: int = 0
    names: tuple[str, ...] = ()
    totals: Tensor | None = None

    def add(self, result: StepResult) -> None:
        self.names = tuple(result.sums)
        terms = [
            value
            for name, sum_ in result.sums.items()
            for value in (sum_, result.counts[name], result.weights[name] * sum_.double())
        ]
        values = torch.stack(
            [t.double() for t in (torch.ones_like(result.gradient_norm), result.gradient_norm, *terms)]
        )
        taken = torch.where(result.finite, values, 0.0)
        self.totals = taken if self.totals is None else self.totals.to(taken.device) + taken
        self.steps += 1

    def read(self) -> tuple[int, dict[str, float]]:
        """The number of steps that were not finite, and the window's means. The one host sync."""
        taken, norm, *terms = self.totals.tolist() if self.totals is not None else (0.0, 0.0)
        # A term that nothing counted in has no mean: the objective is in another stage.
        parts = zip(self.names, terms[::3], terms[1::3], terms[2::3], strict=True)
        losses, loss = {}, 0.0
        for name, sum_, count, weighted in parts:
            if count:
                losses[f"{name}_loss"] = sum_ / count
                loss += weighted / count
        return self.steps - int(taken), {"loss": loss, **losses, "gradient_norm": norm / max(taken, 1)}

    def state(self) -> dict[str, Any]:
        totals = self.totals.tolist() if self.totals is not None else None
        return {"steps": self.steps, "names": self.names, "totals": totals}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Window:
        totals = torch.tensor(state["totals"], dtype=torch.float64) if state["totals"] is not None else None
        return cls(state["steps"], tuple(state["names"]), totals)


@dataclass
class Run:
    """What training changes: weights, optimizer, the number of steps taken. A checkpoint is exactly this."""

    objective: nn.Module
    optimizer: AdamW
    step: int = 0
    skipped: int = 0
    window: Window = field(default_factory=Window)

    def state(self, policy: Literal["stop", "skip"]) -> dict[str, Any]:
        """What a checkpoint stores beside the tensors. Raises DivergedError by the policy."""
        _refuse_non_finite(self.window.read()[0], self, policy)
        return {"skipped": self.skipped, "window": self.window.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self.step, self.skipped = state["step"], state["skipped"]
        self.window = Window.from_state(state["window"])


@dataclass(frozen=True)
class Record:
    """One line of metrics.jsonl, or (`values` empty) a mere pause after a step."""

    step: int
    values: dict[str, Any] = field(default_factory=dict)
    evaluation: Evaluation | None = None


def train(run: Run, plan: Plan, rows: Rows, held_out: Rows, vocabulary: Vocabulary) -> Iterator[Record]:
    """Train from run.step to plan.steps, yielding after every step. Raises DivergedError.

    Between two records nothing is in flight: the consumer may save a checkpoint of `run`, or stop.
    """
    device = vocabulary.counts.device
    started, since = time.perf_counter(), run.step
    run.objective.train()
    while run.step < plan.steps:
        batch = rows.training_batch(plan.seed, run.step, plan.batch_size, device)
        rate = learning_rate_at(run.step, plan.steps, plan.learning_rate, plan.warmup_steps)
        result = training_step(
            run.objective,
            run.optimizer,
            batch,
            seed=plan.seed,
            step=run.step,
            learning_rate=rate,
            clip_norm=plan.clip_norm,
            micro_batch_size=plan.micro_batch_size,
            precision=plan.precision,
        )
        run.step += 1
        run.window.add(result)
        last = run.step == plan.steps
        if run.step % plan.log_every == 0 or last:
            skipped, means = run.window.read()
            seconds, tokens = time.perf_counter() - started, (run.step - since) * plan.batch_size * rows.length
            run.window = Window()
            _refuse_non_finite(skipped, run, plan.on_non_finite)
            run.skipped += skipped
            values = {
                "step": run.step,
                "split": "train",
                **means,
                "learning_rate": rate,
                "skipped_steps": run.skipped,
                "tokens": run.step * plan.batch_size * rows.length,
                "flops": plan.flops.total(run.step),
                "tokens_per_second": tokens / seconds,
                "seconds": seconds,
            }
            yield Record(run.step, values)
            started, since = time.perf_counter(), run.step
        if last or (plan.evaluate_every and run.step % plan.evaluate_every == 0):
            yield _evaluated(run, plan, held_out, vocabulary)
            started, since = time.perf_counter(), run.step
        yield Record(run.step)


def _refuse_non_finite(skipped: int, run: Run, policy: str) -> None:
    if skipped and policy == "stop":
        raise DivergedError(
            f"step {run.step}: the loss or gradient of {skipped} of the steps since the last log line was not finite. "
            "They were not taken, so no weight is spoilt. Lower train.learning_rate, lengthen train.warmup_steps, or "
            "set train.on_non_finite: skip."
        )


def _evaluated(run: Run, plan: Plan, held_out: Rows, vocabulary: Vocabulary) -> Record:
    started = time.perf_counter()
    evaluation = evaluate(
        run.objective,
        held_out,
        vocabulary,
        seed=plan.seed,
        batch_size=plan.evaluate_batch_size,
        precision=plan.precision,
        examples=plan.examples if run.step == plan.steps else 0,
    )
    values = {"step": run.step, "split": "held_out", **evaluation.metrics, "seconds": time.perf_counter() - started}
    return Record(run.step, values, evaluation)
