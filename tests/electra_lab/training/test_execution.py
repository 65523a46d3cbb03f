"""Training in float16: a scaled loss, skipped overflows, and the same numbers as float32."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from electra_lab.checks.guards import rehearse
from electra_lab.training import execution
from electra_lab.training.execution import LossScale
from electra_lab.training.loop import Record
from registry import objectives
from registry.errors import ConfigError, DivergedError
from tests.electra_lab.training.test_cost import reads
from tests.electra_lab.training.test_loop import SETTINGS, new_run, timeless, training, until
from tests.electra_lab.training.tiny import CPU, DISCRIMINATORS, experiment, parameters, step

YES, NO = torch.tensor(True), torch.tensor(False)
HUGE = 2.0**120  # finite in float32, but a gradient times it may overflow
TWELVE = replace(SETTINGS, steps=12, precision="fp16", on_non_finite="stop")


BACKBONES = {**DISCRIMINATORS, "performer": "{type: performer, dim: 16, depth: 1, heads: 2, features: 8, dropout: 0.0}"}


@pytest.fixture(autouse=True)
def _grows_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "CALM", 3)


def start_with(monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    monkeypatch.setattr(LossScale.__init__, "__defaults__", (scale, 0, 0))


def test_the_scale_doubles_when_it_has_been_calm_and_halves_at_an_overflow() -> None:
    scale, seen = LossScale(CPU, 8.0), []
    for gradients in (YES, YES, YES, YES, NO, YES, YES, NO, YES, YES, YES):
        scale.update(YES, gradients)
        seen.append(float(scale.scale))
    assert seen == [8, 8, 16, 16, 8, 8, 8, 4, 4, 4, 8]
    assert scale.state() == {"scale": 8.0, "calm": 0, "overflows": 2}


def test_what_the_scale_cannot_cure_is_not_an_overflow() -> None:
    """A non-finite loss, and non-finite gradients without scaling."""
    scale = LossScale(CPU, 2.0)
    scale.update(NO, NO)
    assert scale.state() == {"scale": 2.0, "calm": 0, "overflows": 0}
    for _ in range(5):
        scale.update(YES, NO)
    assert scale.state() == {"scale": 1.0, "calm": 0, "overflows": 1}


def test_gradients_are_divided_exactly() -> None:
    weight = nn.Parameter(torch.ones(5))
    weight.grad = torch.randn(5)
    before = weight.grad.clone()
    scale = LossScale(CPU, 2.0**16)
    weight.grad *= scale.scale
    scale.unscale([weight, nn.Parameter(torch.ones(2))])  # one without a gradient
    assert torch.equal(weight.grad, before)


@pytest.mark.parametrize("name", BACKBONES)
def test_a_short_training_is_that_of_float32(tmp_path: Path, name: str) -> None:
    made = [experiment(tmp_path, discriminator=BACKBONES[name]) for _ in range(2)]
    scale = LossScale(CPU, 1024.0)
    for number in range(4):
        options = [{"precision": "fp32"}, {"precision": "fp16", "scale": scale}]
        results = [step(m, number=number, micro=4, **o) for m, o in zip(made, options, strict=True)]
        assert all(bool(result.accepted) for result in results)
        for key, value in results[0].sums.items():
            assert float(results[1].sums[key]) == pytest.approx(float(value), rel=1e-2)
        assert float(results[1].gradient_norm) == pytest.approx(float(results[0].gradient_norm), rel=2e-2)
    assert float(scale.scale) == 2048.0  # the scale grew once


def test_the_scale_itself_changes_nothing(tmp_path: Path) -> None:
    made = [experiment(tmp_path) for _ in range(2)]
    for number in range(3):
        step(made[0], number=number)
        step(made[1], number=number, scale=LossScale(CPU, 2.0**10))
    plain, scaled = parameters(made[0]), parameters(made[1])
    assert all(torch.equal(plain[name], scaled[name]) for name in plain)


@pytest.mark.parametrize("optimizer", ["{type: adamw}", "{type: adafactor}"])
def test_an_overflow_is_not_taken(tmp_path: Path, optimizer: str) -> None:
    made = experiment(tmp_path, optimizer=optimizer)
    scale = LossScale(CPU, 2.0**10)
    assert step(made, number=0, precision="fp16", scale=scale).accepted
    before, optimizer_before = parameters(made), _state(made)
    scale = LossScale(CPU, HUGE)
    result = step(made, number=1, precision="fp16", scale=scale)
    assert not result.accepted
    assert all(value.isfinite() for value in result.sums.values())
    after = parameters(made)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(torch.equal(before, after) for before, after in zip(optimizer_before, _state(made), strict=True))
    assert float(scale.scale) == HUGE / 2


def _state(made: Any) -> list[torch.Tensor]:
    return [value.clone() for state in made.run.optimizer.state.values() for value in state.values()]


def test_the_host_does_not_wait() -> None:
    class Reads(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            assert not reads(function, function._schema.name.removeprefix("aten::"), args), function
            return function(*args, **(kwargs or {}))

    weight, scale = nn.Parameter(torch.ones(5)), LossScale(CPU)
    weight.grad = torch.ones(5)
    with Reads():
        scale.unscale([weight])
        scale.update(YES, NO)


# The loop


def values_of(run: Any, settings: Any = TWELVE) -> list[dict[str, Any]]:
    return lines_of(training(run, settings))


def lines_of(records: Iterable[Record]) -> list[dict[str, Any]]:
    return [line for line in timeless(records) if line and line["split"] == "train"]


def test_overflows_are_counted_and_do_not_stop_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of step n is about 10 (n + 1) / (n + 2), from step 4 on less."""
    start_with(monkeypatch, 2.0**126)
    monkeypatch.setattr(execution, "CALM", 100)
    found = values_of(new_run())
    assert [v["skipped_steps"] for v in found] == [1, 2, 2, 2]
    assert [v["loss_scale"] for v in found] == [2.0**125, 2.0**124, 2.0**124, 2.0**124]
    assert all(v["loss"] == v["loss"] for v in found)
    # Nor do they count for the limit of rejected steps, in their window or in later ones.
    skipping = replace(TWELVE, on_non_finite="skip", skip_limit=1)
    found = values_of(new_run(poison=(3, 7)), replace(skipping, skip_limit=2))
    assert [v["skipped_steps"] for v in found] == [1, 3, 4, 4]
    for log_every in (3, 12):
        with pytest.raises(DivergedError, match=r"makes 2 in all, .* \(1\)"):
            values_of(new_run(poison=(3, 7)), replace(skipping, log_every=log_every))


def test_float32_has_no_scale() -> None:
    run = new_run()
    assert "loss_scale" not in values_of(run, replace(TWELVE, precision="fp32"))[0]
    assert "loss_scale" not in run.state(TWELVE)


def test_a_loss_that_is_not_finite_stops_a_training_at_once() -> None:
    with pytest.raises(DivergedError, match=r"step 3: "):
        values_of(new_run(poison=(1,)))


def test_overflows_without_an_end_stop_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the scale has fallen to 1, it is no longer the cause."""
    start_with(monkeypatch, 2.0**4)
    run = new_run()
    run.learner.objective.weight.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(DivergedError, match=r"step 6: .* of 2 of"):
        values_of(run)
    assert torch.isfinite(run.learner.objective.weight)


@pytest.mark.parametrize("stop", [1, 3, 4, 11])
def test_a_state_that_went_through_a_file_goes_on_as_if_nothing_had_happened(monkeypatch, stop: int) -> None:
    start_with(monkeypatch, 2.0**125)
    reference = new_run()
    whole = values_of(reference)
    assert 0 < whole[-1]["skipped_steps"] < 12
    run = new_run()
    found = lines_of(until(stop, run, TWELVE))
    state = json.loads(json.dumps({"step": stop, **run.state(TWELVE)}))
    other = new_run()
    other.learner.objective.load_state_dict(run.learner.objective.state_dict())
    other.restore(state)
    assert repr(found + values_of(other)) == repr(whole)
    assert torch.equal(other.learner.objective.weight, reference.learner.objective.weight)
    assert other.state(TWELVE) == reference.state(TWELVE)


def test_a_missing_kernel_is_reported_with_a_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = experiment(tmp_path)

    def missing(*_: Any) -> Any:
        raise RuntimeError("\"cdist\" not implemented for 'Half'")

    monkeypatch.setattr(made.run.learner, "module", missing)
    batch = made.train.training_batch(0, 0, 2, CPU)
    entry = objectives.get("electra")
    with pytest.raises(ConfigError, match=r"^train.precision: fp16 .*cdist.* Use fp32 or bf16"):
        rehearse(made.run.learner, entry, batch, 0, "fp16", None)
    with pytest.raises(RuntimeError, match="cdist"):
        rehearse(made.run.learner, entry, batch, 0, "bf16", None)
