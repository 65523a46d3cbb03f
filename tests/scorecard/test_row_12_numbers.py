"""Row 12: numbers that are not finite, in gradients, in weights, and by settings that the schema accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.scorecard.conftest import Score
from tests.scorecard.lab import Ended, records, saved
from tests.scorecard.project import Project, sets

EVERY_STEP = sets("checkpoint.every=1", "checkpoint.keep=100")
NAN, INF = float("nan"), float("inf")
# The fault, the settings, and the exit codes; with 0, training went on.
Case = tuple[list[tuple[str, dict[str, Any]]], tuple[str, ...], tuple[int, ...]]
INJECTED: list[Case] = [
    ([("poison_gradient", {"nth": 5, "value": NAN})], (), (5,)),
    ([("poison_gradient", {"nth": 5, "value": INF})], (), (5,)),
    ([("poison_gradient", {"nth": 1, "value": NAN})], (), (5,)),
    ([("poison_gradient", {"nth": 12, "value": NAN})], (), (5,)),
    ([("poison_gradient", {"nth": 5, "value": 1e38, "whole": True})], (), (0, 5)),
    ([("poison_gradient", {"nth": 5, "value": 1e4, "whole": True})], (), (0,)),  # a spike, which is clipped
    ([("poison_gradient", {"nth": 5, "value": NAN})], ("train.log_every=5",), (5,)),
    ([("poison_gradient", {"nth": 5, "value": NAN})], ("train.on_non_finite=skip",), (0,)),
    ([("poison_weight", {"nth": 5, "value": NAN})], (), (5,)),
    ([("poison_weight", {"nth": 12, "value": INF})], (), (5,)),
    ([("poison_weight", {"nth": 5, "value": NAN})], ("train.on_non_finite=skip",), (5,)),
]
EXTREME = [
    "train.learning_rate=1.0e+39", "train.learning_rate=1.0e+38", "train.learning_rate=1.0e+5",
    "train.learning_rate=1.0e-300", "optimizer.epsilon=1.0e-50", "optimizer.epsilon=1.0e-40",
    "optimizer.weight_decay=1.0e+20", "train.clip_norm=1.0e-300", "train.clip_norm=1.0e+300",
    "sampler.temperature=1.0e-30", "objective.generator_weight=1.0e+38", "objective.discriminator_weight=1.0e+300",
    "optimizer.betas=[0.0, 0.0]", "optimizer.betas=[0.9999999999, 0.9999999999]",
]  # fmt: skip


def poisoned(out: Path) -> list[str]:
    """Return the checkpoints that contain non-finite numbers."""
    return [
        f"{path.name} ({name})"
        for path in saved(out)
        for name, tensor in load_file(path / "state.safetensors").items()
        if tensor.is_floating_point() and not tensor.isfinite().all()
    ]


def is_sound(out: Path, ended: Ended, codes: tuple[int, ...]) -> None:
    assert not poisoned(out), f"saved {poisoned(out)[:2]}; {ended}"
    ended.must(*codes)


def test_injected(score: Score, project: Project) -> None:
    for hooks, settings, codes in score.chosen(INJECTED, lambda case: case[0][0][0]):
        with project.trial(score, f"{hooks[0][0]} {hooks[0][1]} {' '.join(settings)}") as out:
            ended = project.run(out, *EVERY_STEP, *sets(*settings), hooks=hooks)
            is_sound(out, ended, codes)
            if ended.code == 0 and "train.on_non_finite=skip" in settings:
                assert records(out)[-1].get("skipped_steps", records(out)[-3].get("skipped_steps")) == 1
            if ended.code == 5:
                assert "step" in ended.last, f"does not say where: {ended}"
                project.resume(out).must(0, 5)


@pytest.mark.scorecard
def test_by_settings(score: Score, project: Project) -> None:
    cases = [(setting, *skip) for setting in EXTREME for skip in ((), ("train.on_non_finite=skip",))]
    for settings in score.chosen(cases, " ".join):
        with project.trial(score, " ".join(settings)) as out:
            is_sound(out, project.run(out, *EVERY_STEP, *sets(*settings)), (0, 2, 5))
