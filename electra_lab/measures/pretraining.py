"""The metrics that a run computed at its end."""

import math
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from electra_lab.metrics import PRETRAINING
from registry import Metric, Trained, measures

NAMES = "generator_mask_loss", "discriminator_auc", "discriminator_loss", "generator_loss", "discriminator_token_loss"
BASELINES = tuple(dict.fromkeys(chain.from_iterable(PRETRAINING[name].baselines for name in NAMES)))


@measures.register("pretraining")
class Pretraining:
    """The test of each run at its end, with the metrics that objectives declare, and baselines that need no training.

    Detection cannot compare cells, because replacements come from each cell's own generator. The generator's loss at
    [MASK] can, unless cells differ in text, masking or objective; reports say so.
    """

    same_rows = False
    metrics: ClassVar[Mapping[str, Metric]] = {name: PRETRAINING[name] for name in NAMES + BASELINES}

    def references(self, base: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        return {}

    def prepare(self, run: Trained, references: Mapping[str, Trained], folder: Path) -> None: ...

    def __call__(self, run: Trained, folder: Path) -> Mapping[str, float]:
        # The "discriminator_loss" of a model that predicts tokens is another loss, listed as its token loss.
        names = [name for name in (*self.metrics, *run.declared) if run.detects or name != "discriminator_loss"]
        numbers = {name: float(run.metrics[name]) for name in names if run.metrics.get(name) is not None}
        return {name: value for name, value in numbers.items() if math.isfinite(value)}
