"""The limits of an ablation's verdict in words."""

import math
from collections.abc import Iterator, Sequence
from itertools import chain

from electra_lab.analysis.intervals import ENOUGH, MANY_DOCUMENTS
from electra_lab.analysis.power import POWER, detectable, smallest, spread
from electra_lab.analysis.results import Results
from electra_lab.presentation.text import counted, listed, named, number, shown
from electra_lab.storage.plan import Expected, PlannedVariant


def limits(results: Results) -> Iterator[str]:
    """Yield the limits of the verdict: unnamed changes, undetectable differences, narrow intervals."""
    # Changes that a variant does not name.
    plan = results.plan
    yield from (_beyond(variant) for variant in plan.variants if variant.beyond)
    # The differences that can be found.
    compared = results.comparisons.against(plan.metric)
    differences = [d for d in compared.values() if d.n]
    if differences:
        tested = [d.n for d in differences if d.p is not None]
        seeds = min(tested, default=max(d.n for d in differences))
        known = [expected for expected in (plan.expected, spread(differences, "by these cells")) if expected]
        if sentence := power(plan.metric, seeds, len(tested), known):
            yield sentence
    # Intervals that do not cover other documents or references.
    layered = {label: d.layers for label, d in compared.items() if d.error is not None}
    for name in dict.fromkeys(chain(*layered.values())):
        if lacking := [named(label) for label, layers in layered.items() if name not in layers]:
            yield (
                f"The intervals of {listed(lacking)} are too narrow: they do not cover other {name}, which are known "
                "for fewer than two seeds."
            )
    documents = [layers["documents"].units for layers in layered.values() if "documents" in layers]
    if documents and min(documents) < MANY_DOCUMENTS:
        yield (
            f"There are only {min(documents)} test documents. If a few of them make most of a difference, its interval "
            "is too narrow and its p value too small: with 20 skewed documents, 95% intervals contained the true "
            f"difference in 90% of simulations; from {MANY_DOCUMENTS} documents on, they hold."
        )


def _beyond(variant: PlannedVariant) -> str:
    changes = []
    for key in variant.beyond:
        if key in variant.differs:
            before, after = variant.differs[key]
            changes.append(f"{key} ({shown(before)} -> {shown(after)})")
    return f"Beyond the change that it names, {named(variant.label)} differs in {listed(changes)}."


def power(metric: str, seeds: int, comparisons: int, known: Sequence[Expected]) -> str:
    """Describe the differences that can be found, given their known spread; "" if there is nothing to compare."""
    size = detectable(seeds, comparisons)
    if size is None:
        few = f"With {counted(seeds, 'seed')} no difference is tested; from {ENOUGH} seeds on, they are."
        return few if seeds < ENOUGH else ""
    found = f"With {seeds} seeds, {POWER:.0%} of such ablations find a difference of"
    if not known:
        return (
            f"{found} {size:.2g} standard deviations (of the differences between two variants with the same seed). "
            "Pilot runs tell how much that is: set `power` in the file of the ablation."
        )
    sizes = [_size(expected, metric, seeds, comparisons) for expected in known]
    return f"{found} {', and of '.join(sizes)}."


def _size(expected: Expected, metric: str, seeds: int, comparisons: int) -> str:
    """Describe the smallest difference that is found, and the spread that it follows from."""
    size = number(smallest(expected, seeds, comparisons))
    varies = f"standard deviation of paired differences {number(expected.sd)}"
    deviations = {name: math.sqrt(shared.variance) for name, shared in expected.shared.items()}
    shares = [f"{number(deviation)} by other {name}" for name, deviation in deviations.items() if deviation]
    if shares:
        varies += f", and {listed(shares)}, which more seeds do not reduce"
    return f"{size} in {metric}, judging {expected.source} ({varies})"
