"""A measure."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from registry import Metric, Trained, measures

NAME = "my_measure"


@measures.register("my_measure")
class MyMeasure:
    """The mean logit of "replaced" on test text, of which nothing is replaced."""

    same_rows = False  # True if the cells must read the same rows
    metrics: ClassVar[Mapping[str, Metric]] = {NAME: Metric("mean logit of the tokens of test text", "suspicion")}

    def references(self, base: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        return {}

    def prepare(self, run: Trained, references: Mapping[str, Trained], folder: Path) -> None: ...

    def __call__(self, run: Trained, folder: Path) -> Mapping[str, float]:
        """Return the number, and nothing for a model that has none."""
        if not run.detects:
            return {}
        total, tokens = 0.0, 0
        for batch in run.test(32):
            states = run.model.hidden(
                batch.tokens, batch.attention_mask, batch.segments, batch.attention_document_ids
            )  # [B T D]
            logits = run.model.replaced_logits(states).double()  # [B T]
            ordinary = batch.attention_mask & ~run.vocabulary.is_special[batch.tokens]
            total += float(torch.where(ordinary, logits, 0.0).sum())
            tokens += int(ordinary.sum())
        return {NAME: total / tokens} if tokens and math.isfinite(total) else {}
