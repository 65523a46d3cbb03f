"""What a run measured of itself."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from electra_lab.measures.pretraining import Pretraining
from tests.electra_lab.measures.readers import run


def of(metrics: dict[str, Any], **changes: Any) -> dict[str, float]:
    return dict(Pretraining()(run(None, None, metrics=metrics, **changes), Path()))


def test_takes_the_metrics_of_the_record_as_they_are() -> None:
    record = {"step": 3, "split": "test", "loss": 9.0, "discriminator_auc": 0.75, "generator_loss": 4}
    assert of(record) == {"discriminator_auc": 0.75, "generator_loss": 4.0}


def test_leaves_out_what_is_not_there() -> None:
    assert of({}) == {}
    assert of({"discriminator_auc": None, "generator_loss": math.nan, "discriminator_loss": math.inf}) == {}


def test_the_loss_of_a_network_that_predicts_tokens_is_no_loss_of_detection() -> None:
    record = {"discriminator_loss": 5.0, "discriminator_token_loss": 5.0}
    assert of(record, detects=False) == {"discriminator_token_loss": 5.0}
    assert of(record) == record


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


def test_baselines_come_along() -> None:
    record = {"discriminator_auc": 0.75, "unigram_auc": 0.5625, "unigram_mask_entropy": 6.5, "unigram_entropy": None}
    assert of(record) == {"discriminator_auc": 0.75, "unigram_auc": 0.5625, "unigram_mask_entropy": 6.5}
