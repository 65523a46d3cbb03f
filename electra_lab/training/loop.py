"""The training loop: a generator of records. There are no callbacks; its consumer saves, prints or stops in between."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.optim import Optimizer

from electra_lab.training.device import Precision
from electra_lab.training.evaluation import Accumulate, Evaluation, evaluation
from electra_lab.training.scaling import LossScale
from electra_lab.training.step import Learner, StepResult, training_step
from registry import Batches, Flops, Split
from registry.errors import DivergedError


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
    on_non_finite: Literal["stop", "skip"]
    flops: Flops  # of training
    examples: int  # rows of the test to return


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
        values = torch.stack([t.double() for t in (result.finite, result.gradient_norm, *terms)])
        taken = torch.where(result.finite, values, 0.0)
        self.totals = taken if self.totals is None else self.totals.to(taken.device) + taken
        self.steps += 1

    def read(self) -> tuple[int, dict[str, float]]:
        """Return the number of steps that were not finite, and the means of the window. The one host sync."""
        taken, norm, *terms = self.totals.tolist() if self.totals is not None else (0.0, 0.0)
        # A term without a count has no mean: the objective is in another stage.
        parts = zip(self.names, terms[::3], terms[1::3], terms[2::3], strict=True)
        losses, loss = {}, 0.0
        for name, sum_, count, weighted in parts:
            if count:
                losses[f"{name}_loss"] = sum_ / count
                loss += weighted / count
        if not taken:  # nothing was learned in this window, which must not look like a loss of 0
            loss = norm = math.nan
        return self.steps - int(taken), {"loss": loss, **losses, "gradient_norm": norm / max(taken, 1)}

    def state(self) -> dict[str, Any]:
        totals = self.totals.tolist() if self.totals is not None else None
        return {"steps": self.steps, "names": self.names, "totals": totals}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        totals = torch.tensor(state["totals"], dtype=torch.float64) if state["totals"] is not None else None
        return cls(state["steps"], tuple(state["names"]), totals)


@dataclass
class Run:
    """Everything that training changes. A checkpoint is exactly this."""

    learner: Learner
    optimizer: Optimizer
    step: int = 0
    tokens: int = 0  # positions of all batches so far, padding included
    skipped: int = 0  # steps that were not finite, up to the last log line
    window: Window = field(default_factory=Window)
    scale: LossScale | None = None  # for fp16

    def __post_init__(self) -> None:
        for group in self.optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])  # torch's own name for what schedules multiply

    def state(self, policy: Literal["stop", "skip"]) -> dict[str, Any]:
        """Return what a checkpoint stores beside the tensors. Raises DivergedError, by the policy."""
        scale = self.scale.state() if self.scale else None
        _refuse_non_finite(self.window.read()[0] - (scale["overflows"] if scale else 0), self, policy)
        return {
            "tokens": self.tokens,
            "skipped": self.skipped,
            "window": self.window.state(),
            **({"loss_scale": scale} if scale else {}),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.step, self.tokens, self.skipped = state["step"], state["tokens"], state["skipped"]
        self.window = Window.from_state(state["window"])
        if scale := state.get("loss_scale"):
            self.scale = LossScale.from_state(scale, torch.device("cpu"))


@dataclass(frozen=True)
class Record:
    """One line of metrics.jsonl, or (`values` empty) a mere pause, after a step or between batches of an evaluation."""

    step: int
    values: dict[str, Any] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    evaluating: bool = False  # a pause within an evaluation, which may be ended there


def splits_at(step: int, settings: Settings, *, tested: bool) -> list[Split]:
    """Return the splits that are evaluated after a step. `tested`: there is text for the test."""
    last = step == settings.steps
    due = last or (settings.evaluate_every and step % settings.evaluate_every == 0)
    splits: list[Split] = ["validation"] if due and step else []
    return [*splits, "test"] if last and tested else splits


def train(
    run: Run,
    settings: Settings,
    batches: Batches,
    held_out: Mapping[str, Batches],
    accumulate: Accumulate,
    device: torch.device,
    *,
    evaluated: bool = True,
) -> Iterator[Record]:
    """Train from run.step to settings.steps, yielding after every step, before its evaluations. Raises DivergedError.

    Validation is evaluated now and then and after the last step, the test after the last step alone, if at all.
    Between two records nothing is in flight: the consumer may save a checkpoint of `run`, or stop. With several
    processes, each computes its part of every batch, and records are the same on all but for evaluations, in which
    there is no pause.

    evaluated  False if the evaluations that are due after run.step are still to be done, as it was stopped before them
    """
    world = run.learner.world
    if not evaluated:
        run.learner.be_after(settings.seed, run.step - 1)
        yield from _evaluated(run, settings, held_out, accumulate, device)
    started, since = time.perf_counter(), run.tokens
    run.learner.objective.train()
    # A resume on another device may have another precision.
    held = run.scale.state() if run.scale else {}
    run.scale = LossScale.from_state(held, device) if settings.precision == "fp16" else None
    while run.step < settings.steps:
        part = world.part(settings.batch_size)
        batch = batches.training_batch(settings.seed, run.step, settings.batch_size, device, part=part)
        rate = settings.rate(run.step, settings.steps)
        result = training_step(
            run.learner,
            run.optimizer,
            batch,
            seed=settings.seed,
            step=run.step,
            rate=rate,
            clip_norm=settings.clip_norm,
            micro_batch_size=settings.micro_batch_size,
            precision=settings.precision,
            scale=run.scale,
        )
        run.step += 1
        run.tokens += batch.tokens.numel() * world.size
        run.window.add(result)
        if run.step % settings.log_every == 0 or run.step == settings.steps:
            skipped, means = run.window.read()
            seconds = time.perf_counter() - started
            run.window = Window()
            scale = run.scale.state() if run.scale else None
            _refuse_non_finite(skipped - (scale["overflows"] if scale else 0), run, settings.on_non_finite)
            run.skipped += skipped
            if scale:
                run.scale = LossScale.from_state({**scale, "overflows": 0}, device)
            values = {
                "step": run.step,
                "split": "train",
                **means,
                "learning_rate": settings.learning_rate * rate,
                "skipped_steps": run.skipped,
                **({"loss_scale": scale["scale"]} if scale else {}),
                "tokens": run.tokens,
                "flops": settings.flops.total(run.step),
                "tokens_per_second": (run.tokens - since) / seconds,
                "seconds": seconds,
            }
            yield Record(run.step, values)
            started, since = time.perf_counter(), run.tokens
        yield Record(run.step)
        if splits_at(run.step, settings, tested=False):
            yield from _evaluated(run, settings, held_out, accumulate, device)
            started, since = time.perf_counter(), run.tokens


def _refuse_non_finite(skipped: int, run: Run, policy: str) -> None:
    if skipped and policy == "stop":
        raise DivergedError(
            f"step {run.step}: the loss or gradient of {skipped} of the steps since the last log line was not finite. "
            "They were not taken, so no weight is damaged. Lower train.learning_rate, lengthen the warm-up "
            "(schedules.learning_rate.warmup_steps), or set train.on_non_finite: skip."
        )


def _evaluated(
    run: Run,
    settings: Settings,
    held_out: Mapping[str, Batches],
    accumulate: Accumulate,
    device: torch.device,
) -> Iterator[Record]:
    """Evaluate what is due after run.step."""
    for split in splits_at(run.step, settings, tested="test" in held_out):
        started = time.perf_counter()
        running = evaluation(
            run.learner,
            held_out[split],
            accumulate,
            seed=settings.seed,
            batch_size=settings.evaluate_batch_size,
            precision=settings.precision,
            device=device,
            examples=settings.examples if split == "test" else 0,
        )
        while True:
            try:
                next(running)
            except StopIteration as end:
                found: Evaluation = end.value
                break
            if run.learner.world.size == 1:
                yield Record(run.step, evaluating=True)
        read = {"step": run.step, "split": split, "tokens": found.tokens}
        yield Record(run.step, {**read, **found.metrics, "seconds": time.perf_counter() - started}, found)
