"""What a run measured of itself at its end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from registry import Quantity, Trained, measures


@measures.register("pretraining")
class Pretraining:
    """The last held-out evaluation of each run, on its own task.

    Between generators, objectives or masking strategies these numbers do not compare: each cell has another task.
    """

    same_rows = False
    quantities: ClassVar[Mapping[str, Quantity]] = {
        "discriminator_auc": Quantity("AUC of finding the replacements of the cell's own generator", own_task=True),
        **{
            name: Quantity(summary, higher_is_better=False, own_task=True)
            for name, summary in {
                "discriminator_loss": "the discriminator's loss on them, nats a token",
                "generator_loss": "the generator's loss at the masked tokens, nats",
                "generator_mask_loss": "the same where it saw [MASK]",
                "discriminator_token_loss": "that of a network that predicts tokens, at the masked ones, nats",
            }.items()
        },
    }

    def __init__(self, /) -> None: ...

    def reference(self, base: Mapping[str, Any]) -> None:
        return None

    def prepare(self, run: Trained, reference: Trained | None, folder: Path) -> None: ...

    def __call__(self, run: Trained, folder: Path) -> Mapping[str, float]:
        # What a network that predicts tokens has under "discriminator_loss" is another loss, listed as its token loss.
        names = [name for name in self.quantities if run.detects or name != "discriminator_loss"]
        found = {name: float(run.metrics[name]) for name in names if run.metrics.get(name) is not None}
        return {name: value for name, value in found.items() if math.isfinite(value)}
