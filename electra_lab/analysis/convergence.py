"""Detect variants of an ablation that were still learning when their training ended."""

from collections.abc import Sequence

import numpy as np

from electra_lab.analysis.records import points
from electra_lab.analysis.results import CellResult

METRICS = ("discriminator_auc", "discriminator_token_mask_loss")  # of the measured network; the first that exists
LAST = 1 / 3  # of training; even learning gains this share in it, and learning that is nearly done a smaller one


def late_gain(cells: Sequence[CellResult]) -> float | None:
    """Return the share of the cells' mean gain over their baselines that came in the last third of training.

    Uses the evaluations on validation text. None if there are too few of them, or no gain at all.
    """
    gains = [*filter(None, map(_gains, cells))]
    if not gains:
        return None
    before, end = np.mean(gains, axis=0)
    return float(1 - before / end) if end > 0 else None


def _gains(cell: CellResult) -> tuple[float, float] | None:
    """Return the gain of a trained cell before the last third of its evaluations, and at the last one."""
    for name in METRICS if cell.trained else ():
        if line := points(cell.records, "validation", f"{name}_gain"):
            steps, gains = np.array(line, float).T
            at = (1 - LAST) * steps[-1]
            return (float(np.interp(at, steps, gains)), float(gains[-1])) if steps[0] <= at else None
    return None
