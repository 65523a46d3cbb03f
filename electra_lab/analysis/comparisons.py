"""All comparisons of a report, corrected together: at most five reports in a hundred make a false claim."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeVar

from electra_lab.analysis.intervals import ENOUGH, Difference, Layers, Values, difference

PRIMARY = 0.8  # the planned comparisons' share of the error rate
Key = tuple[str, ...]
K = TypeVar("K")


@dataclass(frozen=True)
class Comparisons:
    """Differences whose `holm` accounts for all others of the report."""

    _differences: Mapping[Key, Difference]

    def against(self, metric: str) -> dict[str, Difference]:
        """Return each other variant minus the baseline."""
        return {key[2]: d for key, d in self._differences.items() if key[:2] == ("against", metric)}

    def pairs(self, metric: str) -> dict[tuple[str, str], Difference]:
        """Return the first variant minus the second, of every two but the baseline."""
        return {(key[2], key[3]): d for key, d in self._differences.items() if key[:2] == ("pair", metric)}

    @property
    def over_trivial(self) -> dict[tuple[str, str], Difference]:
        """By variant and baseline that needs no training, the primary metric minus that of the baseline."""
        return {(key[1], key[2]): d for key, d in self._differences.items() if key[0] == "trivial"}


def compare(
    values: Mapping[str, Values],
    primary: str,
    baseline: str,
    layers: Mapping[str, Layers] | None = None,
    trivial: Mapping[tuple[str, str], Difference] | None = None,
) -> Comparisons:
    """Compare the variants by every metric. If the primary one is exploratory, nothing is tested.

    primary  metric named in the plan; its differences to the baseline are the planned comparisons
    layers   units that all seeds share, by metric
    trivial  primary metric minus that of a baseline without training, by variant and baseline
    """
    layers = layers or {}
    planned, others = dict[Key, Difference](), dict[Key, Difference]()
    others |= {("trivial", *key): d for key, d in (trivial or {}).items()}

    # Every metric: each variant with the baseline.
    for metric, of_metric in values.items():
        family = planned if metric == primary else others
        for label in filter(baseline.__ne__, of_metric):
            family["against", metric, label] = _paired(label, baseline, of_metric, layers.get(metric))

    # The primary metric: every other pair, as the best variant is known only after seeing the data.
    of_primary = values.get(primary, {})
    for a, b in combinations([label for label in of_primary if label != baseline], 2):
        others["pair", primary, a, b] = _paired(a, b, of_primary, layers.get(primary))

    if is_exploratory(values.get(primary, {}), baseline):
        planned = {key: _untested(d) for key, d in planned.items()}
        others = {key: _untested(d) for key, d in others.items()}
    return Comparisons(corrected(planned, others))


def _untested(d: Difference) -> Difference:
    return d if d.p is None else replace(d, p=None, why="exploratory")


def _paired(a: str, b: str, values: Values, layers: Layers | None) -> Difference:
    pairs = {name: (units.get(a, {}), units.get(b, {})) for name, units in (layers or {}).items()}
    return difference(values.get(a, {}), values.get(b, {}), pairs)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return Holm's step-down adjusted p-values, in the given order; None, not tested, is not part of the family.

    Holm (1979), A simple sequentially rejective multiple test procedure: with the m tests sorted, p(i) is multiplied by
    m - i + 1, at least its predecessor and at most 1. It bounds the chance of any false finding for tests that depend
    on each other in any way, as these do through the baseline that they share.
    """
    tested = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(tested):
        largest = min(1.0, max(largest, (len(tested) - rank) * p))
        adjusted[i] = largest
    return adjusted


def corrected(planned: Mapping[K, Difference], others: Mapping[K, Difference]) -> dict[K, Difference]:
    """Return all of them with p values that bound the chance of any false finding among them.

    The planned ones, of the primary metric with the baseline, share 4/5 of it by Holm's procedure, all others 1/5.
    """
    both = any(d.p is not None for d in planned.values()) and any(d.p is not None for d in others.values())
    differences: dict[K, Difference] = {}
    for family, part in ((planned, PRIMARY), (others, 1 - PRIMARY)):
        share = part if both else 1.0
        adjusted = holm([d.p for d in family.values()])
        for (key, d), p in zip(family.items(), adjusted, strict=True):
            differences[key] = replace(d, holm=None if p is None else min(1.0, p / share))
    return differences


def fewest_seeds(values: Values, baseline: str) -> int:
    """Return the smallest number of seeds that a measured variant shares with the baseline, or has without one."""
    baseline_seeds = values.get(baseline)
    measured = [seeds for seeds in values.values() if seeds]
    return min((len(seeds.keys() & (baseline_seeds or seeds).keys()) for seeds in measured), default=0)


def is_exploratory(values: Values, baseline: str) -> bool:
    """Return True if no variant has enough seeds to be tested, in common with the baseline if that is measured."""
    base = values.get(baseline)
    common = [seeds.keys() & (base or seeds) for label, seeds in values.items() if seeds and label != baseline]
    return bool(common) and max(map(len, common)) < ENOUGH
