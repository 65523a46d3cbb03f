"""The findings of a run: each metric's own number, under its own title, beside its own baselines."""

from __future__ import annotations

import pytest

from electra_lab.metrics import PRETRAINING
from electra_lab.reports.findings import declared, findings, number
from registry import Metric

METRICS = {
    "auc": Metric("how well it ranks", "AUC", baselines=("chance", "rare")),
    "precision": Metric("share of alarms that are right", "precision"),
    "recall": Metric("share of replacements found", "recall"),
    "loss": Metric("what is minimized", unit="nats", higher_is_better=False, baselines=("entropy",)),
    "chance": Metric("", "always 'original'"),
    "rare": Metric("", "rare tokens"),
    "entropy": Metric("", "word frequencies"),
    "absent": Metric("not computed", "absent"),
}
RECORD = {"recall": 0.25, "auc": 0.75, "precision": 0.5, "loss": 2.0, "chance": 0.5, "rare": 0.625, "step": 9}


def test_metrics_come_in_the_order_of_their_declaration_each_with_its_own_number() -> None:
    found = findings(RECORD, METRICS)
    assert [(each.title, each.value) for each in found] == [
        ("AUC", 0.75), ("precision", 0.5), ("recall", 0.25), ("loss", 2.0)
    ]  # fmt: skip
    assert [each.meaning for each in found] == [
        "how well it ranks; always 'original' 0.500, rare tokens 0.625",
        "share of alarms that are right",
        "share of replacements found",
        "what is minimized, in nats",  # its baseline was not computed
    ]


def test_a_baseline_is_not_a_finding_of_its_own() -> None:
    assert findings({"chance": 0.5}, METRICS) == []


def test_a_metric_without_a_number_is_a_dash() -> None:
    [found] = findings({"auc": None, "rare": None}, METRICS)
    assert found.value is None
    assert found.meaning == "how well it ranks; rare tokens -"


def test_a_run_that_declares_nothing_has_the_metrics_of_pretraining() -> None:
    assert declared({}) == PRETRAINING
    assert declared(METRICS) is METRICS
    assert [each.title for each in findings({"discriminator_recall": 0.1, "discriminator_precision": 0.2}, {})] == [
        "precision", "recall"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "  0.500"), (12.3456, " 12.346"), (-1.0, " -1.000"), (None, "      -")]
)
def test_a_number_of_the_terminal(value: float | None, text: str) -> None:
    assert number(value) == text
