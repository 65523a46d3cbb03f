"""Refused steps, by hand: the average of the norms, spikes, and their state."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from electra_lab.training import execution as trouble
from electra_lab.training.execution import Watch, non_finite_parameters
from electra_lab.training.loop import Record
from registry import BatchSizes
from registry.contracts.objective import ALONE
from registry.errors import DivergedError
from tests.electra_lab.training.test_loop import CPU, SETTINGS, Asked, new_run, records_of, training, until

YES, NO = torch.tensor(True), torch.tensor(False)


def judged(watch: Watch, norms: list[float], start: int = 0) -> list[bool]:
    taken = []
    for step, norm in enumerate(norms, start):
        value = torch.tensor(norm)
        watch.step.fill_(step)
        taken.append(bool(watch.judge(value.isfinite(), value, None)))
    return taken


def test_a_spike_is_a_norm_above_the_factor_times_the_average(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of the first LEAD steps, which are never spikes, then an exponential average over as many."""
    monkeypatch.setattr(trouble, "LEAD", 4)
    watch = Watch(factor=3.0)
    assert judged(watch, [1.0, 100.0, 1.0, 2.0]) == [True] * 4
    assert float(watch.average) == 26.0
    assert judged(watch, [78.0, 78.1]) == [True, True], "the first raises the average to 39"
    average = (39.0 * 3 + 78.1) / 4
    assert float(watch.average) == pytest.approx(average)
    assert judged(watch, [3.001 * average, 2.999 * average], 6) == [False, True]
    assert (int(watch.first), bool(watch.spiked)) == (6, True)
    assert float(watch.average) == pytest.approx(average * (3 + 2.999) / 4), "a refused step does not count"


def test_the_lead_is_of_taken_steps() -> None:
    watch = Watch(factor=1.5)
    assert judged(watch, [math.nan] * 50 + [1.0] * 99 + [1e6]) == [False] * 50 + [True] * 100
    assert judged(watch, [1e7], 150) == [False]


def test_without_a_factor_only_what_is_not_finite_is_refused() -> None:
    watch = Watch()
    assert judged(watch, [1.0] * 200 + [1e30, math.inf, math.nan]) == [True] * 201 + [False] * 2
    assert (int(watch.first), bool(watch.spiked)) == (201, False)
    watch.forget()
    assert int(watch.first) == -1


def test_an_overflow_of_fp16_is_not_a_divergence() -> None:
    watch = Watch(factor=2.0)
    watch.step.fill_(3)
    assert not watch.judge(NO, torch.tensor(math.inf), YES)
    assert int(watch.first) == -1
    watch.step.fill_(4)
    assert not watch.judge(NO, torch.tensor(math.inf), NO)
    assert int(watch.first) == 4


@pytest.mark.parametrize("stop", [1, 5, 9, 13])
def test_a_state_that_went_through_a_file_judges_as_before(monkeypatch: pytest.MonkeyPatch, stop: int) -> None:
    monkeypatch.setattr(trouble, "LEAD", 4)
    norms = [(1 + 0.1 * n) * (40 if n in (7, 11) else 1) / 3 for n in range(16)]
    whole, part = Watch(factor=4.0), Watch(factor=4.0)
    expected = judged(whole, norms)
    assert expected.count(False) == 2
    first = judged(part, norms[:stop])
    other = Watch.from_state(json.loads(json.dumps(part.state())), CPU, 4.0)
    assert first + judged(other, norms[stop:], stop) == expected
    assert other.state() == whole.state()


def test_the_host_does_not_wait_for_the_device() -> None:
    """Reading a number would fail on the meta device."""
    watch = Watch(torch.device("meta"), 2.0)
    for step in range(3):
        finite = torch.empty((), dtype=torch.bool, device="meta")
        watch.step.fill_(step)
        watch.judge(finite, torch.empty((), device="meta"), finite)
    watch.forget()


def test_the_names_of_spoilt_parameters() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert non_finite_parameters(module, ALONE) == []
    with torch.no_grad():
        module[1].weight[0, 1] = math.inf
        module[1].bias[1] = math.nan
    assert non_finite_parameters(module, ALONE) == ["1.weight", "1.bias"]


# In the loop, where step n of `poison` is not finite


@pytest.mark.parametrize(
    ("limit", "says"), [(2, r"step 6: .* That makes 3 in all, more than .* \(2\)"), (1, "step 6: "), (0, "step 3: ")]
)
def test_skip_has_a_limit_over_all_windows(limit: int, says: str) -> None:
    settings = replace(SETTINGS, on_non_finite="skip", skip_limit=3)
    assert records_of(new_run((1, 3, 5)), settings)[-1].step == 7
    with pytest.raises(DivergedError, match=says):
        records_of(new_run((1, 3, 5)), replace(settings, skip_limit=limit))


def test_the_limit_counts_the_refused_steps_of_earlier_windows_after_a_resume() -> None:
    """The checkpoint has one in a window that has ended and one in its own; another follows."""
    for limit in (3, 2):
        settings = replace(SETTINGS, on_non_finite="skip", skip_limit=limit)
        run, other = new_run((1, 3, 5)), new_run((1, 3, 5))
        until(4, run, settings)
        other.restore(json.loads(json.dumps({"step": 4, **run.state(settings)})))
        if limit == 3:
            assert records_of(other, settings)[-1].step == 7
        else:
            with pytest.raises(DivergedError, match=r"step 6: .* That makes 3 in all, more than .* \(2\)"):
                records_of(other, settings)


def test_records_have_the_number_of_rows_that_were_read() -> None:
    run, batches = new_run(), Asked()
    growing = replace(SETTINGS, warmup=BatchSizes(9, start=1), micro_batch_size=9, log_every=1)
    lines = [record.values for record in training(run, growing, batches) if "batch_size" in record.values]
    assert [line["batch_size"] for line in lines] == [size for *_, size in batches.training] == [1, 2, 3, 4, 5, 6, 7]


def test_a_refused_step_of_a_checkpoint_does_not_stop_a_resume_under_another_policy() -> None:

    def resumed(*poison: int) -> list[Record]:
        run, skipping = new_run(poison), replace(SETTINGS, on_non_finite="skip")
        until(4, run, skipping)
        state = json.loads(json.dumps({"step": 4, **run.state(skipping)}))
        other = new_run(poison)
        other.restore(state)
        return records_of(other, SETTINGS)

    assert resumed(3)[-1].step == 7
    with pytest.raises(DivergedError, match=r"step 6: .* of 1 of .* \(first at step 6\)\."):
        resumed(3, 5)


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_weights_that_an_update_has_spoilt_are_named_before_they_are_evaluated(policy: Any) -> None:
    """Loss and gradient were finite, so the message must not claim that no weight is damaged."""
    run, settings = new_run(rate=1e38), replace(SETTINGS, on_non_finite=policy, evaluate_every=1)
    with pytest.raises(DivergedError, match=r"^step 1: weight is no longer finite") as refused:
        records_of(run, settings)
    assert "no weight is damaged" not in str(refused.value)
