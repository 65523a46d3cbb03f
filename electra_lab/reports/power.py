"""What an ablation can tell: the smallest difference that it finds with a probability of 80 %."""

import math
from collections.abc import Iterable, Mapping

from scipy import optimize, stats

from electra_lab.reports.statistics import ALPHA, ENOUGH, PRIMARY, Difference, number

POWER = 0.8


def spread(differences: Iterable[Difference]) -> float | None:
    """Return the standard deviation of paired differences between seeds, pooled; None if there are no intervals."""
    found = [d.error**2 * d.n for d in differences if d.error is not None]
    return math.sqrt(sum(found) / len(found)) if found else None


def detectable(seeds: int, comparisons: int, others: bool = True) -> float | None:
    """Return the smallest difference that is found, in standard deviations of paired differences between seeds.

    That is a difference which the paired t test with this many seeds calls distinguishable with a probability of 80 %,
    at the level that Holm's procedure begins with; None for fewer seeds than are tested. `others`: there are more
    comparisons in the report than the planned ones.
    """
    if seeds < ENOUGH or comparisons < 1:
        return None
    level = ALPHA * (PRIMARY if others else 1.0) / comparisons
    limit = stats.t.ppf(1 - level / 2, seeds - 1)

    def lacking(size: float) -> float:
        return float(stats.nct.sf(limit, seeds - 1, size * math.sqrt(seeds))) - POWER

    enough = 1.0
    while lacking(enough) < 0:  # far beyond it, scipy's noncentral t is not a number
        enough *= 2
    return float(optimize.brentq(lacking, 0.0, enough))


def sentence(metric: str, seeds: int, comparisons: int, known: Mapping[str, float]) -> str:
    """Say which differences can be found; `known` has standard deviations of paired differences, by their source."""
    if (size := detectable(seeds, comparisons)) is None:
        return f"With {seeds} seed{'s' * (seeds != 1)} no difference is tested; from {ENOUGH} seeds on, they are."
    said = (
        f"With {seeds} seeds, {POWER:.0%} of such ablations find a difference of {size:.2g} standard deviations (of the"
    )
    said += " differences between two variants with the same seed)"
    if not known:
        return f"{said}. How much that is, only pilot runs can tell: `power` in the file of the ablation."
    each = [
        f"{number(size * sd)} in {metric}, as this deviation is {number(sd)} {source}" for source, sd in known.items()
    ]
    return f"{said}: {'; '.join(each)}."
