"""Whether a comparison depends on the reference: variant x reference, for a metric that is a mean over references.

The difference of a variant to the baseline is taken under each reference, seed by seed, and so is the difference of two
such differences: the contrast of the two references. It is zero if both say the same of a variant, whichever of them is
the harder one.
"""

from collections.abc import Mapping

from electra_lab.analysis.comparisons import Claims, Parts
from electra_lab.analysis.statistics import Difference, are, listed, named, number, p_text
from electra_lab.analysis.verdict import leader

Contrasts = Mapping[tuple[str, str, str], Difference]  # by variant and two references, the first minus the second


def sentences(parts: Parts, claimed: Claims, baseline: str, higher_is_better: bool = True) -> list[str]:
    """Say whether the differences to the baseline depend on the reference, and whether the best variant does.

    Empty if fewer than two references, or fewer than two variants, were measured.
    """
    parts = {part: {label: each for label, each in values.items() if each} for part, values in parts.items()}
    parts = {part: values for part, values in parts.items() if len(values) > 1}
    known = claimed.contrasts(list(parts))
    found = {key: d for key, d in known.items() if all(key[0] in parts[part] for part in key[1:])}
    if not found:
        return []
    said = [_dependence(parts, found, claimed), _best(parts, claimed, baseline, higher_is_better)]
    return [sentence for sentence in said if sentence]


def _dependence(parts: Parts, found: Contrasts, claimed: Claims) -> str:
    tested = [d.holm for d in found.values() if d.holm is not None]
    if not tested:
        why = max(found.values(), key=lambda d: d.n).why
        return f"Whether the order of the variants depends on the reference cannot be tested ({why})."
    clear = {key: d for key, d in found.items() if d.distinguishable}
    if not clear:
        which = "" if len(tested) == len(found) else "tested "
        return (
            f"No {which}difference to the baseline is distinguishably larger or smaller by one reference than by "
            f"another (smallest {p_text(min(tested))})."
        )
    differences = {part: claimed.against(part) for part in parts}
    largest: dict[str, str] = {}
    for (label, a, b), d in sorted(clear.items(), key=lambda item: -abs(item[1].mean or 0)):
        one, other = (number(differences[part][label].mean, sign=True) for part in (a, b))
        largest.setdefault(label, f"{named(label)} ({one} by {a}, {other} by {b}, {p_text(d.holm)})")
    said = f"The differences to the baseline depend on the reference: that of {listed([*largest.values()])}."
    turned = [
        named(label)
        for label in largest
        if all(any(d[label].found(higher) for d in differences.values()) for higher in (True, False))
    ]
    if turned:
        said += f" {are(turned)} distinguishably better than the baseline by one reference and worse by another."
    return said


def _best(parts: Parts, claimed: Claims, baseline: str, higher_is_better: bool) -> str:
    """Say which variant has the best mean by which reference, as far as one may be called the best."""
    by: dict[str, list[str]] = {}
    for part, values in parts.items():
        if best := leader(part, values, baseline, higher_is_better, claimed):
            by.setdefault(best, []).append(part)
    if len(by) > 1:
        each = "; ".join(f"{label} by {listed(those)}" for label, those in by.items())
        return f"The variant with the best mean is not the same by every reference: {each}."
    everywhere = [label for label, those in by.items() if len(those) == len(parts)]
    return f"{everywhere[0]} has the best mean by every reference." if everywhere else ""
