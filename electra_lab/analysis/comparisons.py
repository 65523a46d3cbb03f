"""All comparisons of a report, corrected together: at most five reports in a hundred make a false claim."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from electra_lab.analysis.statistics import (
    Difference,
    Layers,
    Values,
    against,
    corrected,
    difference,
    is_exploratory,
    pairwise,
)

Parts = Mapping[str, Values]  # of a metric that is a mean over references: by the metric of each reference
Key = tuple[str, ...]


@dataclass(frozen=True)
class Claims:
    """Differences with p values that account for every other one of the report."""

    _found: Mapping[Key, Difference]

    def against(self, metric: str) -> dict[str, Difference]:
        """Return each other variant minus the baseline."""
        return {key[2]: d for key, d in self._found.items() if key[:2] == ("against", metric)}

    def pairs(self, metric: str) -> dict[tuple[str, str], Difference]:
        """Return the first variant minus the second, of every two but the baseline, in both orders."""
        half = {(key[2], key[3]): d for key, d in self._found.items() if key[:2] == ("pair", metric)}
        return half | {(b, a): _reversed(d) for (a, b), d in half.items()}

    @property
    def over_trivial(self) -> dict[tuple[str, str], Difference]:
        """By variant and baseline that needs no training, the primary metric minus that of the baseline."""
        return {(key[1], key[2]): d for key, d in self._found.items() if key[0] == "trivial"}

    def contrasts(self, parts: Sequence[str]) -> dict[tuple[str, str, str], Difference]:
        """Return by variant and two references the difference to the baseline by the first minus by the second."""
        kept = {key[1:]: d for key, d in self._found.items() if key[0] == "contrast"}
        return {(label, a, b): d for (a, b, label), d in kept.items() if a in parts and b in parts}


def claims(
    values: Mapping[str, Values],
    primary: str,
    baseline: str,
    parts: Sequence[Sequence[str]] = (),
    layers: Mapping[str, Layers] | None = None,
    trivial: Mapping[tuple[str, str], Difference] | None = None,
) -> Claims:
    """Compare the variants by every metric. If the primary one is exploratory, nothing is tested.

    primary  the metric that was named before; its differences to the baseline are the planned comparisons
    parts    of each metric that is a mean over references: the metrics of these
    layers   by metric, what else its numbers would differ by if it were drawn again
    trivial  by variant and baseline that needs no training, the primary metric minus that of the baseline
    """
    layers = layers or {}
    planned, others = dict[Key, Difference](), dict[Key, Difference]()
    others |= {("trivial", *key): d for key, d in (trivial or {}).items()}
    for metric, each in values.items():
        found = planned if metric == primary else others
        found |= {("against", metric, label): d for label, d in against(each, baseline, layers.get(metric)).items()}
    known = [[part for part in each if part in values] for each in parts]
    for metric in dict.fromkeys([primary, *(part for those in known for part in those)]):
        pairs = pairwise(values.get(metric, {}), baseline, layers.get(metric))
        others |= {("pair", metric, a, b): d for (a, b), d in pairs.items()}
    for those in known:
        for (label, a, b), d in contrasts({part: values[part] for part in those}, baseline, layers).items():
            others["contrast", a, b, label] = d
    if is_exploratory(values.get(primary, {}), baseline):
        planned, others = ({key: _untested(d) for key, d in each.items()} for each in (planned, others))
    return Claims(corrected(planned, others))


def _untested(d: Difference) -> Difference:
    return d if d.p is None else replace(d, p=None, why="exploratory")


def contrasts(
    parts: Parts, baseline: str, layers: Mapping[str, Layers] | None = None
) -> dict[tuple[str, str, str], Difference]:
    """Return the contrast of every two references for every variant but the baseline: of the first minus the second."""
    found, layers = {}, layers or {}
    for (a, one), (b, other) in combinations(parts.items(), 2):
        for label in [label for label in one if label != baseline]:
            # Sums, as the spread of equal contrasts has to be small beside the numbers, not beside their differences.
            ours = _added(one[label], other.get(baseline, {}))
            theirs = _added(other.get(label, {}), one.get(baseline, {}))
            here, there = layers.get(a, {}), layers.get(b, {})
            units = {
                name: (
                    _added(here[name].get(label, {}), there[name].get(baseline, {})),
                    _added(there[name].get(label, {}), here[name].get(baseline, {})),
                )
                for name in here.keys() & there.keys()
            }
            found[label, a, b] = difference(ours, theirs, units)
    return found


def _added(one: Mapping[int, Any], other: Mapping[int, Any]) -> dict[int, Any]:
    """Add numbers, or lists of as many numbers, of the seeds that both have."""
    both = [seed for seed in one.keys() & other.keys() if np.shape(one[seed]) == np.shape(other[seed])]
    return {seed: np.add(one[seed], other[seed]) for seed in both}


def _reversed(d: Difference) -> Difference:
    mean, low, high = (None if each is None else -each for each in (d.mean, d.high, d.low))
    return replace(d, mean=mean, low=low, high=high)
