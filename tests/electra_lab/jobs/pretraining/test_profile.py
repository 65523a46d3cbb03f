"""Profiles: the time of a step by part, which adds up to the step and changes no number."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from electra_lab.backbones import bert
from electra_lab.jobs.pretraining import execute
from electra_lab.jobs.pretraining import profile as profiles
from electra_lab.jobs.pretraining.profile import COMPUTE, STEP, Timeline, times
from electra_lab.presentation.profile import table
from electra_lab.storage.files import read_as
from electra_lab.storage.records import Profile
from registry.errors import ConfigError
from tests.electra_lab.jobs.pretraining.tiny import timeless
from tests.helpers import write_experiment

PARTS = {
    "host",
    "other",
    "losses",
    "masking",
    "embedding",
    "attention",
    "feed-forward",
    "heads",
    "sampler",
    "optimizer",
}


def run(folder: Path, out: str, backbone: str = "bert", profile: int | None = None, **sections: str) -> Path:
    discriminator = f"{{type: {backbone}, dim: 16, depth: 2, heads: 2}}"
    file = write_experiment(folder, discriminator=discriminator, **sections)
    return execute.run(file, [], folder / out, "cpu", profile=profile)


def weights(run: Path) -> bytes:
    (last,) = sorted(run.glob("checkpoints/step-*/state.safetensors"))[-1:]
    return last.read_bytes()


def test_a_profile_changes_no_number_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, plain = list[float](), bert.add_feed_forward
    seen = list[Any]()

    def spied(events: Any) -> tuple[dict[str, float], bool]:
        events = list(events)
        seen.extend(events)
        return times(events)

    monkeypatch.setattr(profiles, "times", spied)
    profiled = run(tmp_path, "profiled", profile=2, train="{steps: 7, batch_size: 4, learning_rate: 1.0e-2}")
    unprofiled = run(tmp_path, "plain", train="{steps: 7, batch_size: 4, learning_rate: 1.0e-2}")
    assert weights(profiled) == weights(unprofiled)
    assert timeless(profiled) == timeless(unprofiled)
    assert bert.add_feed_forward is plain
    # The parts, whose sum is the time of the steps.
    found = read_as(Profile, profiled / "profile.json")
    assert found.seconds.keys() == PARTS
    assert min(found.seconds.values()) > 0
    steps = [event for event in seen if event.name == f"electra_lab: {STEP}"]
    computes = [event.time_range.start for event in seen if event.name == f"electra_lab: {COMPUTE}"]
    for event in steps:
        if any(event.time_range.start <= at <= event.time_range.end for at in computes):
            whole.append(event.time_range.elapsed_us())
    assert len(whole) == found.steps == 2
    assert sum(found.seconds.values()) == pytest.approx(sum(whole) * 1e-6 / 2, rel=1e-6)
    assert found.seconds["other"] < sum(found.seconds.values()) / 2
    # The page, the terminal and the trace.
    said = capfd.readouterr().err
    assert "profiler_" not in said  # messages of torch's library
    page = (profiled / "report.html").read_text()
    for part in PARTS:
        assert part in said
        assert f">{part}</th>" in page
    with gzip.open(profiled / "trace.json.gz") as trace:
        names = {event.get("name") for event in json.load(trace)["traceEvents"]}
    assert {f"electra_lab: {part}" for part in PARTS} <= names
    assert "Time of a step" in page
    assert "Time of a step" not in (unprofiled / "report.html").read_text()


@pytest.mark.parametrize(
    ("backbone", "part"),
    [("transformer", "attention"), ("modernbert", "attention"), ("deberta", "attention"), ("performer", "attention"),
     ("reformer", "attention")],
)  # fmt: skip
def test_parts_of_other_encoders_and_their_flops(tmp_path: Path, backbone: str, part: str) -> None:
    longer = {"embedding": "{dim: 8, max_length: 128}"} if backbone == "reformer" else {}
    made = run(tmp_path, "out", backbone, 1, train="{steps: 4, batch_size: 4, learning_rate: 1.0e-2}", **longer)
    found = read_as(Profile, made / "profile.json")
    expected = {*PARTS} - {"attention", "feed-forward"} | (
        {"attention", "feed-forward"} if part == "attention" else {part}
    )
    assert found.seconds.keys() == expected
    provenance = json.loads((made / "provenance.json").read_text())
    assert sum(found.flops.values()) == provenance["flops"] / 4
    assert min(found.flops.values()) > 0
    assert found.flops.keys() <= found.seconds.keys()
    share = table(found).rows[-1]
    assert share[2] == "100.0%"


def test_flops_of_bert_by_hand(tmp_path: Path) -> None:
    made = run(tmp_path, "out", profile=1, train="{steps: 4, batch_size: 4, learning_rate: 1.0e-2}")
    found, config = (
        read_as(Profile, made / "profile.json"),
        json.loads((made / "provenance.json").read_text())["config"],
    )
    length, sizes = config["data"]["sequence_length"], [config["generator"]["dim"], config["discriminator"]["dim"]]
    fed = sum(3 * 4 * config["discriminator"]["depth"] * 4 * length * dim * 4 * dim for dim in sizes)
    assert found.flops["feed-forward"] == fed


@pytest.mark.parametrize(("steps", "early"), [(1, 1), (3, 2)])
def test_flops_are_those_of_the_profiled_steps(tmp_path: Path, steps: int, early: int) -> None:
    """Of `two_stage`, the steps from 4 on, the first ones of which train the generator alone."""
    train, objective = "{steps: 9, batch_size: 4, learning_rate: 1.0e-2}", "{type: two_stage, generator_steps: 5}"
    made = run(tmp_path, "out", profile=steps, train=train, objective=objective, embedding="{dim: 8, tie: none}")
    found = read_as(Profile, made / "profile.json")
    config = json.loads((made / "provenance.json").read_text())["config"]
    length, depth = config["data"]["sequence_length"], config["discriminator"]["depth"]
    small, large = (4 * depth * 4 * length * 4 * config[name]["dim"] ** 2 for name in ("generator", "discriminator"))
    whole = early * 3 * small + (steps - early) * (small + 3 * large)
    assert found.flops["feed-forward"] == round(whole / steps)


def test_a_run_that_is_too_short_is_refused_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--profile 5: needs 8 steps"):
        run(tmp_path, "out", profile=5, train="{steps: 7, batch_size: 4, learning_rate: 1.0e-2}")
    assert not (tmp_path / "out").exists()


def event(name: str, begin: float, end: float, **facts: Any) -> SimpleNamespace:
    usual: dict[str, Any] = {"thread": 1, "sequence_nr": -1, "scope": 0, "kernels": []}
    reach = SimpleNamespace(start=begin, end=end)
    return SimpleNamespace(name=name, time_range=reach, device_type=torch.autograd.DeviceType.CPU, **usual | facts)


def test_backward_operations_belong_to_the_part_of_their_forward_operation() -> None:
    """On a device with its own thread for the backward pass, kernels belong to the part that launched them."""
    label, backward = "electra_lab: ", "autograd::engine::evaluate_function: "
    kernels = [SimpleNamespace(duration=3e6)]
    events = [
        event(f"{label}{STEP}", 0, 100e6), event(f"{label}{COMPUTE}", 10e6, 90e6),
        event(f"{label}attention", 20e6, 40e6), event(f"{label}feed-forward", 30e6, 40e6),
        event("mm", 22e6, 23e6, sequence_nr=1), event("mm", 32e6, 35e6, sequence_nr=2),
        event(f"{backward}Mm", 50e6, 60e6, sequence_nr=2), event("Mm", 51e6, 59e6, sequence_nr=2, scope=1),
        event(f"{backward}Mm", 60e6, 65e6, sequence_nr=1),
        event(f"{label}{STEP}", 200e6, 300e6),  # only reads a record
    ]  # fmt: skip
    assert times(events) == ({"host": 20.0, "other": 45.0, "attention": 15.0, "feed-forward": 20.0}, False)
    for one in events[6:9]:
        one.thread = 2
    events[5].kernels, events[7].kernels, events[8].kernels = kernels, kernels, 2 * kernels
    assert times(events) == ({"host": 88.0, "attention": 6.0, "feed-forward": 6.0}, True)


def test_a_timeline_has_the_innermost_label() -> None:
    line = Timeline([(0, 10, "a"), (2, 8, "b"), (3, 4, "c"), (8, 9, "d"), (20, 21, "e")])
    assert [line.at(moment) for moment in (-1, 0, 2.5, 3, 4, 8, 9.5, 15, 20)] == ["", *"abcbda", "", "e"]
    assert line.totals() == {"a": 3, "b": 5, "c": 1, "d": 1, "e": 1}
