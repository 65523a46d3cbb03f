"""A plug-in for tests: classification whose leading metric is the share of errors; lower is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from electra_lab.tasks.text_classification import TextClassification
from registry import Metric, TextExample, tasks


@tasks.register("by_errors", takes=TextExample)
class ByErrors(TextClassification):
    """Text classification with a share of errors."""

    metrics: ClassVar[Mapping[str, Metric]] = {
        "errors": Metric("share of the examples that get a wrong label", "errors", higher_is_better=False),
        **TextClassification.metrics,
    }

    def results(self, *given: Any) -> Any:
        found = super().results(*given)
        metrics = found.metrics
        return replace(found, metrics={**metrics, "errors": 1 - metrics["accuracy"]} if metrics else {})
