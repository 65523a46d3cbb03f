"""The metrics that a run measured during pre-training."""

import math
from pathlib import Path
from typing import Any

import pytest

from electra_lab.measures.pretraining import Pretraining
from tests.electra_lab.measures.readers import run

DETECTS = {"discriminator_auc": 0.75, "unigram_auc": 0.5625, "unigram_mask_entropy": 6.5}
LOST = {"discriminator_auc": None, "generator_loss": math.nan, "discriminator_loss": math.inf}
PREDICTS = {"discriminator_loss": 5.0, "discriminator_token_loss": 5.0}


@pytest.mark.parametrize(
    ("record", "detects", "expected"),
    [
        ({"step": 3, "split": "test", "loss": 9.0, "generator_loss": 4}, True, {"generator_loss": 4.0}),
        (DETECTS | {"unigram_entropy": None}, True, DETECTS),
        (LOST, True, {}),
        (PREDICTS, True, PREDICTS),
        (PREDICTS, False, {"discriminator_token_loss": 5.0}),  # its first loss is not for detection
    ],
)
def test_takes_the_metrics_of_the_record_that_are_numbers(record: Any, detects: bool, expected: Any) -> None:
    assert Pretraining()(run(None, None, metrics=record, detects=detects), Path()) == expected


def test_knows_which_way_is_good() -> None:
    better = {name: metric.higher_is_better for name, metric in Pretraining.metrics.items()}
    assert [name for name, higher in better.items() if higher] == [
        "discriminator_auc", "always_original_auc", "unigram_auc"
    ]  # fmt: skip


def test_the_loss_at_mask_leads_and_detection_is_on_the_task_of_each_cell() -> None:
    metrics = Pretraining.metrics
    assert next(iter(metrics)) == "generator_mask_loss"
    own = [name for name, metric in metrics.items() if not metric.comparable]
    assert own == ["discriminator_auc", "discriminator_loss"]
    for metric in metrics.values():
        assert metrics.keys() >= set(metric.baselines)
