"""The limits of an ablation's verdict in words."""

import math
from collections.abc import Iterator, Sequence
from itertools import chain

from electra_lab.analysis.bimodality import bimodal
from electra_lab.analysis.convergence import LAST, late_gain
from electra_lab.analysis.intervals import ENOUGH
from electra_lab.analysis.power import POWER, detectable, smallest, spread
from electra_lab.analysis.results import Results
from electra_lab.presentation.text import counted, listed, named, number, shown
from electra_lab.storage.plan import Expected, PlannedVariant


def limits(results: Results) -> Iterator[str]:
    """Yield the limits of the verdict: unequal or unfinished learning, unnamed changes, undetectable differences."""
    plan = results.plan
    if groups := bimodal(results.values(plan.metric)):
        cut, torn = groups
        yield (
            f"The cells fall into two groups, below and above {number(cut)}. Seeds of {listed([*map(named, torn)])} "
            "are in both groups: some seem to have made a step that others have not. So intervals may be too narrow. "
            "Train longer, or use more seeds."
        )
    growing = [named(v.label) for v in plan.variants if (late_gain(results.of(v.label)) or 0) >= LAST]
    if growing:
        yield (
            f"{listed(growing)} made a third or more of {'its' if len(growing) == 1 else 'their'} gain on validation "
            "text in the last third of training: longer training may change the order."
        )
    yield from map(_beyond, filter(lambda variant: variant.beyond, plan.variants))
    compared = results.comparisons.against(plan.metric)
    differences = [d for d in compared.values() if d.n]
    if differences:
        tested = [d.n for d in differences if d.p is not None]
        seeds = min(tested, default=max(d.n for d in differences))
        known = [*filter(None, [plan.expected, spread(differences, "by these cells")])]
        yield from filter(None, [power(plan.metric, seeds, len(tested), known)])
    layered = {label: d.layers for label, d in compared.items() if d.error is not None}
    for name in dict.fromkeys(chain(*layered.values())):
        if lacking := [named(label) for label, layers in layered.items() if name not in layers]:
            yield (
                f"The intervals of {listed(lacking)} are too narrow: they do not cover other {name}, which are known "
                "for fewer than two seeds."
            )


def _beyond(variant: PlannedVariant) -> str:
    words = []
    for key in filter(variant.differs.__contains__, variant.beyond):
        before, after = variant.differs[key]
        words.append(f"{key} ({shown(before)} -> {shown(after)})")
    return f"Beyond the change that it names, {named(variant.label)} differs in {listed(words)}."


def power(metric: str, seeds: int, comparisons: int, known: Sequence[Expected]) -> str:
    """Describe the differences that can be found, given their known spread; "" if there is nothing to compare."""
    if (size := detectable(seeds, comparisons)) is None:
        if seeds >= ENOUGH:
            return ""
        return f"With {counted(seeds, 'seed')} no difference is tested; from {ENOUGH} seeds on, they are."
    said = f"With {seeds} seeds, {POWER:.0%} of such ablations find a difference of"
    if not known:
        return (
            f"{said} {size:.2g} standard deviations (of the differences between two variants with the same seed). "
            "Pilot runs tell how much that is: set `power` in the file of the ablation."
        )
    return f"{said} {', and of '.join(_found(expected, metric, seeds, comparisons) for expected in known)}."


def _found(expected: Expected, metric: str, seeds: int, comparisons: int) -> str:
    found = number(smallest(expected, seeds, comparisons))
    varies = f"standard deviation of paired differences {number(expected.sd)}"
    others = {name: math.sqrt(shared.variance) for name, shared in expected.shared.items()}
    if any(others.values()):
        shares = [f"{number(sd)} by other {name}" for name, sd in others.items() if sd]
        varies += f", and {listed(shares)}, which more seeds do not lessen"
    return f"{found} in {metric}, judging {expected.source} ({varies})"
