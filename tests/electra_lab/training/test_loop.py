"""The loop: records equal means by hand, for any windows, clocks, policies and stops."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from electra_lab.storage import state
from electra_lab.training import loop
from electra_lab.training.loop import Record, Run, Settings, Training, Window, train
from electra_lab.training.step import Learner, StepResult
from registry import Batch, BatchSizes, Flops, Losses, Objective, Term
from registry.errors import DivergedError
from tests.electra_lab.training.tiny import CPU

LENGTH = 3
SETTINGS = Settings(
    seed=5, steps=7, batch_size=4, micro_batch_size=4, learning_rate=0.25, rate=lambda step, steps: (steps - step) / 8,
    clip_norm=1e9, precision="fp32", log_every=3, evaluate_every=None, evaluate_batch_size=2, on_non_finite="stop",
    flops=Flops(per_step=100, first=2, at_first=7), examples=1,
)  # fmt: skip


class Slope(Objective, nn.Module):
    """One weight w from 1. Step n has the term `a` of the sum (n + 1) w over n + 2, from step 4 on `b` of -w over 5.

    Steps in `poison` are not finite.
    """

    def __init__(self, poison: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.weight, self.poison, self.step = nn.Parameter(torch.tensor(1.0)), poison, -1
        self.modes: list[bool] = []

    def at_step(self, seed: int, step: int) -> None:
        assert seed == SETTINGS.seed
        self.step = step

    def forward(self, batch: Batch, rng: Any) -> Losses:
        self.modes.append(self.training)
        n, late = self.step, self.step >= 4
        spoiled = float("nan") if self.training and n in self.poison else 0.0
        a = Term((n + 1) * self.weight + spoiled, torch.tensor(n + 2), 10.0)
        return Losses({"a": a, "b": Term(-self.weight * late, torch.tensor(5 * late), 0.5 + n)})


class Asked:
    def __init__(self, number: int = 6) -> None:
        self.number = number
        self.training: list[tuple[int, int, int]] = []
        self.evaluations: list[int] = []
        self.now = 0.0

    def __len__(self) -> int:
        return self.number

    def training_batch(
        self, seed: int, step: int, size: int | BatchSizes, device: torch.device, *, part: slice = slice(None)
    ) -> Batch:
        number = size if isinstance(size, int) else size.at(step)
        self.training.append((seed, step, number))
        self.now += 2.0
        return rows(number)

    def example_ids(self, places: Sequence[int]) -> list[int]:
        return list(places)

    def in_order(self, size: int, device: torch.device, *, part: slice = slice(None)) -> Iterator[Batch]:
        self.evaluations.append(size)
        self.now += 1000.0
        yield rows(self.number)


def rows(number: int) -> Batch:
    tokens = torch.zeros(number, LENGTH, dtype=torch.long)
    return Batch(tokens, tokens == 0, tokens, torch.arange(number))


class Nothing:
    """An accumulator without metrics, which records the requested examples."""

    asked: list[list[int]] = []  # noqa: RUF012
    metrics: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, show: Any) -> None:
        self.asked.append(sorted(show))

    def update(self, batch: Batch, losses: Losses) -> None: ...

    def values(self) -> dict[str, float]:
        return {}

    def examples(self) -> list[Any]:
        return []


def new_run(poison: tuple[int, ...] = (), rate: float = 0.25) -> Run:
    objective = Slope(poison)
    return Run(Learner(objective), torch.optim.SGD(objective.parameters(), lr=rate))


def training(
    run: Run, settings: Settings = SETTINGS, batches: Asked | None = None, *, evaluated: bool = True, **held_out: Asked
) -> Iterator[Record]:
    batches = batches or Asked()
    splits = {"validation": batches, "test": batches} | held_out
    return train(Training(run, settings, batches, splits, Nothing, CPU), evaluated=evaluated)


def records_of(run: Run, settings: Settings = SETTINGS, **options: Any) -> list[Record]:
    return list(training(run, settings, **options))


def until(step: int, run: Run, settings: Settings) -> list[Record]:
    """Train, stop after a step before its evaluation, and return the records so far."""
    found = []
    for record in training(run, settings):
        found.append(record)
        if record.step == step and not record.values:
            break
    return found


def timeless(records: Iterable[Record]) -> list[dict[str, Any]]:
    found = [dict(record.values) for record in records]
    for values, measured in product(found, ("seconds", "tokens_per_second", "peak_memory_bytes")):
        values.pop(measured, None)
    return found


def by_hand(poison: tuple[int, ...] = ()) -> list[dict[str, float]]:
    """Return weight, sums and gradient of each step of plain gradient descent on 10 a / count + (0.5 + n) b / count."""
    weight, steps = 1.0, []
    for n in range(SETTINGS.steps):
        late = n >= 4
        gradient = 10 * (n + 1) / (n + 2) - (0.5 + n) / 5 * late
        steps.append({"w": weight, "gradient": abs(gradient)})
        if n not in poison:
            weight -= 0.25 * (7 - n) / 8 * gradient
    return steps


def window_by_hand(steps: range, poison: tuple[int, ...] = ()) -> dict[str, float]:
    """Return means over all counts of the window's taken steps; the loss uses each step's own weights."""
    known = by_hand(poison)
    taken = [n for n in steps if n not in poison]
    late = [n for n in taken if n >= 4]
    a, b = sum(n + 2 for n in taken), 5 * len(late)
    found = {"a_loss": sum((n + 1) * known[n]["w"] for n in taken) / a}
    loss = sum(10 * (n + 1) * known[n]["w"] for n in taken) / a
    if late:
        found["b_loss"] = sum(-known[n]["w"] for n in late) / b
        loss += sum((0.5 + n) * -known[n]["w"] for n in late) / b
    return {**found, "loss": loss, "gradient_norm": sum(known[n]["gradient"] for n in taken) / len(taken)}


def means_of(values: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in values.items() if key.endswith("loss") or key == "gradient_norm"}


def test_records_are_means_by_hand() -> None:
    """A term that no step of the window counts has no mean; tokens and FLOPs include all steps so far."""
    batches = Asked()
    found = [record.values for record in records_of(new_run(), batches=batches) if record.values]
    assert [(v["step"], v["split"]) for v in found] == [
        (3, "train"), (6, "train"), (7, "train"), (7, "validation"), (7, "test"),
    ]  # fmt: skip
    for values, steps in zip(found, (range(3), range(3, 6), range(6, 7)), strict=False):
        expected = window_by_hand(steps)
        assert means_of(values) == pytest.approx(expected)
        done = values["step"]
        assert values["learning_rate"] == 0.25 * (7 - (done - 1)) / 8
        assert values["tokens"] == done * 4 * LENGTH
        assert values["flops"] == 2 * 7 + (done - 2) * 100
        assert values["skipped_steps"] == 0
    assert batches.training == [(5, step, 4) for step in range(7)]
    assert batches.evaluations == [2, 2]


@pytest.mark.parametrize(("log", "evaluate"), [(1, 1), (2, 3), (3, 7), (7, 2), (9, None), (1, 9)])
def test_lines_evaluations_and_pauses_come_when_they_are_due(log: int, evaluate: int | None) -> None:
    """The end is always logged, validated and tested, once; a pause ends every step, before its evaluations.

    If the end would be the only log line, the first step has one, too: a curve needs two points.
    """
    expected: list[tuple[int, str]] = []
    for step in range(1, 8):
        expected += [(step, "train")] * (step % log == 0 or step == 7 or (step == 1 and log >= 7))
        expected += [(step, "")]
        expected += [(step, "validation")] * (step == 7 or (evaluate is not None and step % evaluate == 0))
        expected += [(step, "test")] * (step == 7)
    read = {"validation": Asked(), "test": Asked()}
    found = records_of(new_run(), replace(SETTINGS, log_every=log, evaluate_every=evaluate), **read)
    found = [record for record in found if not record.evaluating]
    assert [(record.step, record.values.get("split", "")) for record in found] == expected
    for split, batches in read.items():
        assert len(batches.evaluations) == [name for _, name in expected].count(split)
    for record in found:
        assert (record.evaluation is not None) == (record.values.get("split") in ("validation", "test"))


@pytest.mark.parametrize("begin", [0, 3, 6])
def test_each_split_is_read_for_its_own_records(begin: int) -> None:
    """Also after a resume. A record has the number of positions read; rows have 3."""
    ours, validation, tested = Asked(), Asked(5), Asked(11)
    run = new_run()
    run.step = begin
    settings = replace(SETTINGS, evaluate_every=2)
    records = records_of(run, settings, batches=ours, validation=validation, test=tested)
    found = [record.values for record in records if record.values]
    evaluations = [(values["step"], values["tokens"]) for values in found if values["split"] == "validation"]
    assert evaluations == [(step, 5 * LENGTH) for step in (2, 4, 6, 7) if step > begin]
    assert [(values["step"], values["tokens"]) for values in found if values["split"] == "test"] == [(7, 11 * LENGTH)]
    assert validation.evaluations == [2] * len(evaluations)
    assert tested.evaluations == [2]
    assert ours.evaluations == validation.training == tested.training == []


def test_a_run_that_is_complete_is_not_tested_again_unless_it_lacks_that() -> None:
    run, batches = new_run(), Asked()
    run.step = SETTINGS.steps
    assert records_of(run, batches=batches) == batches.evaluations == []
    found = records_of(run, batches=batches, evaluated=False)
    assert [(r.step, r.values["split"]) for r in found if r.values] == [(7, "validation"), (7, "test")]
    assert batches.training == []


def test_an_evaluation_may_be_left_after_any_batch() -> None:

    class Three(Asked):
        def in_order(self, size: int, device: torch.device, *, part: slice = slice(None)) -> Iterator[Batch]:
            for _ in range(3):
                yield rows(2)

    run = new_run()
    for number, record in enumerate(training(run, replace(SETTINGS, evaluate_every=1), validation=Three())):
        assert record.step == 1
        assert record.evaluating == (number > 0)
        if number == 2:
            break
    assert run.learner.objective.training


def test_training_is_in_train_mode_and_evaluation_is_not_and_only_the_test_shows_examples() -> None:
    run = new_run()
    run.learner.objective.eval()
    Nothing.asked.clear()
    records_of(run, replace(SETTINGS, evaluate_every=5, examples=2))
    assert Nothing.asked == [[], [], [1, 4]]
    assert run.learner.objective.modes == [True] * 5 + [False] + [True] * 2 + [False] * 2


def test_time_is_that_of_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps take 2 s; evaluation takes 1000 s and the consumer 500 s per record, which do not count."""
    batches = Asked()
    monkeypatch.setattr(loop.time, "perf_counter", lambda: batches.now)
    found = []
    for record in training(new_run(), replace(SETTINGS, evaluate_every=4), batches):
        batches.now += 500 if record.values else 0
        found += [record.values] if record.values else []
    lines = {values["step"]: values for values in found if values["split"] == "train"}
    assert {step: values["seconds"] for step, values in lines.items()} == {3: 6.0, 6: 4.0, 7: 2.0}
    assert {values["tokens_per_second"] for values in lines.values()} == {4 * LENGTH / 2.0}
    assert {values["seconds"] for values in found if values["split"] != "train"} == {1000.0}


# Steps that are not finite


@pytest.mark.parametrize("poison", [(0,), (2,), (3, 4), (6,), (0, 3, 5), (0, 1, 2)])
def test_skipped_steps_are_counted_and_left_out_of_every_mean(poison: tuple[int, ...]) -> None:
    """Training continues from the previous weights; the schedule and the number of tokens advance.

    A window without a taken step has no mean, rather than a loss of 0.
    """
    run = new_run(poison)
    found = [r.values for r in records_of(run, replace(SETTINGS, on_non_finite="skip")) if r.values][:-2]
    for values, steps in zip(found, (range(3), range(3, 6), range(6, 7)), strict=True):
        assert values["skipped_steps"] == len([n for n in poison if n < values["step"]])
        assert values["tokens"] == values["step"] * 4 * LENGTH
        nothing = {"loss": math.nan, "gradient_norm": math.nan}
        expected = window_by_hand(steps, poison) if set(steps) - set(poison) else nothing
        assert means_of(values) == pytest.approx(expected, nan_ok=True)
    last = by_hand(poison)
    final = last[6]["w"] - (0 if 6 in poison else 0.25 / 8 * (10 * 7 / 8 - 6.5 / 5))
    assert float(run.learner.objective.weight.detach()) == pytest.approx(final)


@pytest.mark.parametrize(("poison", "says"), [((0,), "step 3: .* of 1 of"), ((4, 5), "step 6: .* of 2 of"),
                                              ((6,), "step 7: .* of 1 of")])  # fmt: skip
def test_stop_ends_at_the_next_log_line_with_the_weights_of_before(poison: tuple[int, ...], says: str) -> None:
    run, seen = new_run(poison), list[Record]()
    with pytest.raises(DivergedError, match=says):
        seen.extend(training(run))
    stop = int(says.split()[1][0])
    assert [record.step for record in seen if record.values] == [step for step in (3, 6) if step < stop]
    assert torch.isfinite(run.learner.objective.weight)


def test_a_checkpoint_sees_what_has_diverged_before_the_log_line_does() -> None:
    """With `stop` saving the state raises; with `skip` the state contains the open window."""
    skipping = replace(SETTINGS, on_non_finite="skip")
    stopped, skipped = new_run((3,)), new_run((3,))
    until(4, stopped, SETTINGS)
    until(4, skipped, skipping)
    with pytest.raises(DivergedError, match="step 4: "):
        stopped.state(SETTINGS)
    assert skipped.state(skipping)["window"]["steps"] == 1


@pytest.mark.parametrize("stop", range(1, 7))
@pytest.mark.parametrize("poison", [(), (1, 4)])
def test_a_state_that_went_through_a_file_goes_on_as_if_nothing_had_happened(tmp_path: Path, stop: int, poison) -> None:
    settings = replace(SETTINGS, on_non_finite="skip", evaluate_every=4)
    whole, run = timeless(records_of(new_run(poison), settings)), new_run(poison)
    found = until(stop, run, settings)
    state = json.loads(json.dumps({"step": stop, **run.state(settings)}))
    other = new_run(poison)
    other.learner.objective.load_state_dict(run.learner.objective.state_dict())
    other.restore(state)
    assert (other.step, other.tokens) == (stop, stop * 4 * LENGTH)
    found += records_of(other, settings, evaluated=stop != 4)  # it was stopped before the evaluation
    assert timeless(found) == whole


# Windows


def result(a: float, count: int, weight: float, norm: float, accepted: bool = True) -> StepResult:
    return StepResult(
        {"a": torch.tensor(a)}, {"a": torch.tensor(count)}, {"a": weight}, torch.tensor(norm), torch.tensor(accepted)
    )


def test_a_window_by_hand() -> None:
    window = Window()
    window.add(result(6.0, 2, 1.0, 3.0), 4.0)
    window.add(result(float("nan"), 9, 1.0, float("inf"), accepted=False), 4.0)
    window.add(result(4.0, 3, 10.0, 5.0), 4.0)
    skipped, means = window.read()
    assert skipped == 1
    assert means == {"loss": (6 + 40) / 5, "a_loss": 10 / 5, "gradient_norm": 4.0, "clipped_gradient_norm": 3.5}
    assert window.read() == (skipped, means)  # reading has no side effects
    assert Window().read()[0] == 0
    assert Window.from_state(json.loads(json.dumps(Window().state()))) == Window()


def test_a_window_of_networks_that_are_clipped_apart() -> None:
    """The norm after clipping is that of both clipped parts together; also for a state saved to a file."""
    window = Window()
    for generator, discriminator in ((3.0, 4.0), (0.6, 0.8)):
        norms = {"generator": torch.tensor(generator), "discriminator": torch.tensor(discriminator)}
        window.add(replace(result(6.0, 2, 1.0, (generator**2 + discriminator**2) ** 0.5), norms=norms), 1.0)
        stored = state.Window.model_validate(json.loads(json.dumps(window.state()))).model_dump()
        assert Window.from_state(stored).read() == window.read()
    assert window.read()[1] == pytest.approx({
        "loss": 3.0, "a_loss": 3.0, "gradient_norm": 3.0, "clipped_gradient_norm": (2**0.5 + 1) / 2,
        "generator_gradient_norm": 1.8, "discriminator_gradient_norm": 2.4,
    })  # fmt: skip


def test_sums_are_exact_where_float32_is_not() -> None:
    window = Window()
    for _ in range(1000):
        window.add(result(0.1, 1, 1.0, 0.0))
    window.add(result(1e6, 1, 1.0, 0.0))
    assert window.read()[1]["a_loss"] == pytest.approx((1e6 + 100 * 1.0000000149) / 1001, rel=1e-12)
