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
    measured = {}
    for part, values in parts.items():
        if sum(map(bool, values.values())) > 1:
            measured[part] = {label: seeds for label, seeds in values.items() if seeds}
    found = {}
    for (label, a, b), d in compared.contrasts([*measured]).items():
        if label in measured[a] and label in measured[b]:
            found[label, a, b] = d
    if not found:
        return []
    said = [_dependence(measured, found, compared), _best(measured, compared, baseline, higher_is_better)]
    return [*filter(None, said)]


def _dependence(parts: Parts, found: Contrasts, compared: Comparisons) -> str:
    tested = [d.holm for d in found.values() if d.holm is not None]
    if not tested:
        why = max(found.values(), key=lambda d: d.n).why
        return f"Whether the order of the variants depends on the reference cannot be tested ({why})."
    clear = {key: d for key, d in found.items() if d.distinguishable}
    if not clear:
        kind = "" if len(tested) == len(found) else "tested "
        return (
            f"No {kind}difference to the baseline is distinguishably larger or smaller by one reference than by "
            f"another (smallest {p_text(min(tested))})."
        )

    # Of each variant, the largest contrast.
    differences = {part: compared.against(part) for part in parts}
    largest: dict[str, str] = {}
    for (label, a, b), d in sorted(clear.items(), key=lambda item: -abs(item[1].mean or 0)):
        one, other = (number(differences[part][label].mean, sign=True) for part in (a, b))
        largest.setdefault(label, f"{named(label)} ({one} by {a}, {other} by {b}, {p_text(d.holm)})")
    said = f"The differences to the baseline depend on the reference: that of {listed([*largest.values()])}."

    # Variants that one reference calls better, and another worse.
    turned = []
    for label in largest:
        of_label = [of_part[label] for of_part in differences.values()]
        if any(d.found(True) for d in of_label) and any(d.found(False) for d in of_label):
            turned.append(named(label))
    if turned:
        said += f" {are(turned)} distinguishably better than the baseline by one reference and worse by another."
    return said


def _best(parts: Parts, compared: Comparisons, baseline: str, higher_is_better: bool) -> str:
    """Say which variant has the best mean by which reference, as far as one may be called the best."""
    by: dict[str, list[str]] = {}
    for part, values in parts.items():
        if best := leader(part, values, baseline, higher_is_better, compared):
            by.setdefault(best, []).append(part)
    if len(by) > 1:
        winners = "; ".join(f"{label} by {listed(references)}" for label, references in by.items())
        return f"The variant with the best mean is not the same by every reference: {winners}."
    everywhere = [label for label, references in by.items() if len(references) == len(parts)]
    return f"{everywhere[0]} has the best mean by every reference." if everywhere else ""
