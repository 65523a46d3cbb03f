"""Whether a comparison depends on the reference, in words and tables: for a metric that is a mean over references.

The difference of a variant to the baseline is taken under each reference, seed by seed, and so is the difference of two
such differences: the contrast of the two references. It is zero if both say the same of a variant, whichever of them is
the harder one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from electra_lab.analysis.comparisons import Comparisons, Parts
from electra_lab.analysis.intervals import Difference
from electra_lab.presentation.tables import Table
from electra_lab.presentation.text import are, listed, named, number, p_text
from electra_lab.presentation.verdict import leader

Contrasts = Mapping[tuple[str, str, str], Difference]  # by variant and two references, the first minus the second


@dataclass(frozen=True)
class ByReference:
    """Variant x reference, for a metric that is a mean over references."""

    metric: str
    sentences: list[str]
    means: Table  # a row per variant and reference: the mean, and the difference to the baseline
    contrasts: Table


def sentences(parts: Parts, compared: Comparisons, baseline: str, higher_is_better: bool = True) -> list[str]:
    """Say whether the differences to the baseline depend on the reference, and whether the best variant does.

    Empty if fewer than two references, or fewer than two variants, were measured.
    """
    # The references by which two or more variants were measured.
    measured = {}
    for part, values in parts.items():
        of_part = {label: seeds for label, seeds in values.items() if seeds}
        if len(of_part) > 1:
            measured[part] = of_part
    # The contrasts of variants that were measured by both references.
    contrasts = {}
    for (label, a, b), d in compared.contrasts([*measured]).items():
        if label in measured[a] and label in measured[b]:
            contrasts[label, a, b] = d
    if not contrasts:
        return []
    dependence = _dependence(measured, contrasts, compared)
    best = _best(measured, compared, baseline, higher_is_better)
    return [dependence, best] if best else [dependence]


def _dependence(parts: Parts, contrasts: Contrasts, compared: Comparisons) -> str:
    # Nothing is tested, or nothing distinguishable.
    tested = [d.holm for d in contrasts.values() if d.holm is not None]
    if not tested:
        why = max(contrasts.values(), key=lambda d: d.n).why
        return f"Whether the order of the variants depends on the reference cannot be tested ({why})."
    clear = {key: d for key, d in contrasts.items() if d.distinguishable}
    if not clear:
        kind = "" if len(tested) == len(contrasts) else "tested "
        return (
            f"No {kind}difference to the baseline is distinguishably larger or smaller by one reference than by "
            f"another (smallest {p_text(min(tested))})."
        )

    # Of each variant, the largest contrast.
    differences = {part: compared.against(part) for part in parts}
    largest: dict[str, str] = {}
    for (label, a, b), d in sorted(clear.items(), key=lambda item: -abs(item[1].mean or 0)):
        by_a = number(differences[a][label].mean, sign=True)
        by_b = number(differences[b][label].mean, sign=True)
        largest.setdefault(label, f"{named(label)} ({by_a} by {a}, {by_b} by {b}, {p_text(d.holm)})")
    sentence = f"The differences to the baseline depend on the reference: that of {listed([*largest.values()])}."

    # Variants that one reference calls better, and another worse.
    turned = []
    for label in largest:
        of_label = [of_part[label] for of_part in differences.values()]
        if any(d.found(True) for d in of_label) and any(d.found(False) for d in of_label):
            turned.append(named(label))
    if turned:
        sentence += f" {are(turned)} distinguishably better than the baseline by one reference and worse by another."
    return sentence


def _best(parts: Parts, compared: Comparisons, baseline: str, higher_is_better: bool) -> str:
    """Say which variant has the best mean by which reference, as far as one may be called the best."""
    best_by: dict[str, list[str]] = {}  # references, by the variant that is the best by them
    for part, values in parts.items():
        if best := leader(part, values, baseline, higher_is_better, compared):
            best_by.setdefault(best, []).append(part)
    if len(best_by) > 1:
        winners = "; ".join(f"{label} by {listed(references)}" for label, references in best_by.items())
        return f"The variant with the best mean is not the same by every reference: {winners}."
    for label, references in best_by.items():
        if len(references) == len(parts):
            return f"{label} has the best mean by every reference."
    return ""
