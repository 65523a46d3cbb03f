"""Conclusions from a few seeds: means, paired differences, corrected tests, and a verdict in plain words.

Every run of one seed shares its data order, masks and draws with the other variants' runs of that seed, so variants are
compared seed by seed: the difference of a pair is free of the effect that the seed has on both. Intervals and tests are
Student's t, which assumes roughly normal differences; so few seeds cannot check that.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
ALPHA = 0.05  # of the corrected tests: below it, a difference is called distinguishable
ENOUGH = 5  # seeds; with fewer, a finding is a reason to look again

Values = Mapping[str, Mapping[int, float]]  # of one metric: by variant, by seed
Axis = Mapping[str, float]  # by variant, the number that it sets, if the ablation varies one numeric key


@dataclass(frozen=True)
class Estimate:
    """A mean of n numbers with its confidence interval; if there is no interval, `why` says so."""

    n: int
    mean: float | None
    low: float | None = None
    high: float | None = None
    why: str = ""

    @property
    def half(self) -> float | None:
        """Half the width of the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True)
class Difference(Estimate):
    """A mean paired difference. `p` is two-sided, for this alone; `holm` is for its family; None if not testable."""

    p: float | None = None
    holm: float | None = None

    @property
    def distinguishable(self) -> bool:
        """The corrected test distinguishes it from seed noise."""
        return self.holm is not None and self.holm <= ALPHA

    def found(self, higher: bool) -> bool:
        """Distinguishable, and above zero, or below it."""
        return self.distinguishable and self.mean is not None and (self.mean > 0) == higher


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean with Student's t interval, mean -+ t(0.975, n - 1) s / sqrt(n)."""
    return _t(values, max((abs(v) for v in values), default=0.0), "value")[0]


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference:
    """Return ours minus theirs over the seeds that both have: the paired t interval and test (Student 1908)."""
    seeds = sorted(ours.keys() & theirs.keys())
    scale = max((abs(v) for seed in seeds for v in (ours[seed], theirs[seed])), default=0.0)
    found, p = _t([ours[seed] - theirs[seed] for seed in seeds], scale, "difference")
    return Difference(found.n, found.mean, found.low, found.high, found.why, p)


def _t(values: Sequence[float], scale: float, what: str) -> tuple[Estimate, float | None]:
    """Return mean and interval, and the p-value of a zero mean. `scale` is the size of the underlying numbers."""
    n = len(values)
    if n == 0:
        return Estimate(0, None, why="no seed in common" if what == "difference" else "not measured"), None
    mean = float(np.mean(values))
    if n == 1:
        return Estimate(1, mean, why="one seed: no interval"), None
    # Equal numbers have a spread of rounding errors at most; an interval of that width would claim certainty.
    if float(np.std(values, ddof=1)) <= 8 * np.finfo(float).eps * scale:
        return Estimate(n, mean, why=f"the same {what} with every seed: no interval"), None
    test = stats.ttest_1samp(values, 0.0)
    interval = test.confidence_interval(CONFIDENCE)
    return Estimate(n, mean, float(interval.low), float(interval.high)), float(test.pvalue)


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


def against(values: Values, baseline: str) -> dict[str, Difference]:
    """Compare each other variant with the baseline; Holm over these comparisons, which were planned before the data."""
    theirs = values.get(baseline, {})
    found = {label: difference(ours, theirs) for label, ours in values.items() if label != baseline}
    corrected = holm([d.p for d in found.values()])
    return {label: replace(d, holm=p) for (label, d), p in zip(found.items(), corrected, strict=True)}


def pairwise(values: Values) -> dict[tuple[str, str], Difference]:
    """Return first minus second of every two variants, in both orders; Holm over all pairs.

    The best variant is known only after seeing the data, so comparing it with its rivals has to be corrected as if
    every pair had been compared.
    """
    pairs = list(combinations(values, 2))
    found = [difference(values[a], values[b]) for a, b in pairs]
    result: dict[tuple[str, str], Difference] = {}
    for (a, b), d, p in zip(pairs, found, holm([d.p for d in found]), strict=True):
        result[a, b] = replace(d, holm=p)
        result[b, a] = replace(difference(values[b], values[a]), holm=p)
    return result


def fewest_seeds(values: Values, baseline: str) -> int:
    """Return the fewest seeds that a measured variant shares with the baseline; or has, if there is no baseline."""
    theirs = values.get(baseline)
    return min((len(each.keys() & (theirs or each).keys()) for each in values.values() if each), default=0)


def is_exploratory(values: Values, baseline: str) -> bool:
    return fewest_seeds(values, baseline) < ENOUGH


def sentences(
    metric: str, values: Values, baseline: str, higher_is_better: bool = True, axis: Axis | None = None, key: str = ""
) -> list[str]:
    """Return the verdict, one sentence per item: first how much the number of seeds allows, then the best variant.

    key  the name of the key that `axis` has the numbers of

    Nothing is said to differ unless the corrected test says so, and nothing is ever said to be equal. The best is
    judged over the seeds that all have: over its own, a variant would win by lacking an unlucky one.
    """
    values = {named(label): each for label, each in values.items()}
    axis = {named(label): at for label, at in (axis or {}).items()}
    measured = {label: each for label, each in values.items() if each}
    if not measured:
        return [f"Nothing can be said yet: no cell has a {metric}."]
    verdict = _Verdict(metric, measured, named(baseline), higher_is_better)
    if len(measured) == 1:
        [(label, each)] = measured.items()
        mean = number(float(np.mean(list(each.values()))))
        return [verdict.seeds(), f"Only {label} has a {metric}, {mean}: there is nothing to compare."]
    best, leader = verdict.leader()
    said = [verdict.seeds(), leader, verdict.others(best), verdict.rivals(best), verdict.place(best, axis, key)]
    if lacking := [label for label, each in values.items() if not each]:
        said.append(f"{listed(lacking)} {'has' if len(lacking) == 1 else 'have'} no {metric}.")
    if len({tuple(sorted(each)) for each in measured.values()}) > 1:
        said.append("The means below are not all over the same seeds; the differences are, pair by pair.")
    return [sentence for sentence in said if sentence]


def leader(values: Values, baseline: str, higher_is_better: bool = True) -> str:
    """Return the variant that `sentences` call the best; "" if they call none so."""
    measured = {label: each for label, each in values.items() if each}
    return _Verdict("", measured, baseline, higher_is_better).leader()[0] if measured else ""


@dataclass(frozen=True)
class _Verdict:
    """The sentences about measured variants; each is "" if there is nothing to say."""

    metric: str
    measured: Values
    baseline: str
    higher_is_better: bool

    @cached_property
    def differences(self) -> dict[str, Difference]:
        return against(self.measured, self.baseline)

    @cached_property
    def pairs(self) -> dict[tuple[str, str], Difference]:
        return pairwise(self.measured)

    def seeds(self) -> str:
        n = fewest_seeds(self.measured, self.baseline)
        if all(len(each) == 1 for each in self.measured.values()):
            return "With 1 seed this is exploratory: nothing can be distinguished from seed noise."
        if n < min(*(len(each) for each in self.measured.values()), ENOUGH):
            pairs = f"only {_seeds(n)}" if n else "no seed"
            return f"As a variant shares {pairs} with the baseline {self.baseline}, this is exploratory."
        if n == 1:
            return "As not every variant has more than 1 seed, this is exploratory."
        return f"With {n} seeds this is exploratory." if n < ENOUGH else f"Every variant has {n} seeds or more."

    def leader(self) -> tuple[str, str]:
        """Return the best mean over the seeds that all have, "" if none may be called so; and a sentence about it."""
        measured, baseline, metric = self.measured, self.baseline, self.metric
        shared = set.intersection(*(set(each) for each in measured.values()))
        partial = any(len(each) > len(shared) for each in measured.values())
        unmeasured = f"; the baseline {baseline} was not measured, so nothing is compared to it"
        alone = "" if baseline in measured else unmeasured
        if not shared:
            return "", f"There is no seed that all have, so none is called the best{alone}."
        means = {k: float(np.mean([v for seed, v in each.items() if seed in shared])) for k, each in measured.items()}
        top = (max if self.higher_is_better else min)(means.values())
        equal = [label for label, mean in means.items() if math.isclose(mean, top, rel_tol=1e-12)]
        best = baseline if baseline in equal else equal[0]
        ahead = {k: self._ahead(k) if partial else [] for k in means}
        which = "highest" if self.higher_is_better else "lowest"
        over = f" over the {_seeds(len(shared))} that all have" if partial else ""
        if found := ahead[best]:
            said = f"{best} has the {which} mean {metric}{over}, but {_are(found)} distinguishably better by more seeds"
            return "", f"{said}, so none is called the best{alone}."
        ties = [k for k in equal if k != best and not ahead[k]]
        said = f"{best}{' (the baseline)' if best == baseline else ''} has the best (the {which}) mean {metric}{over}, "
        said += f"{number(means[best])}{f', as has {listed(ties)}' if ties else ''}{alone}"
        if alone or best == baseline:
            return best, f"{said}."
        d = self.differences[best]
        both = f" over the {_seeds(d.n)} that both have" if d.n > len(shared) else ""
        return best, f"{said}; its difference to the baseline {baseline}{both}, {_described(d)}."

    def _ahead(self, label: str) -> list[str]:
        """Return the variants that a corrected test, against the baseline or of all pairs, finds better than this."""
        higher = self.higher_is_better
        found = [b for (a, b), d in self.pairs.items() if a == label and d.found(not higher)]
        if label == self.baseline:
            found += [other for other, d in self.differences.items() if d.found(higher)]
        elif self.differences[label].found(not higher):
            found.append(self.baseline)
        return list(dict.fromkeys(found))

    def others(self, best: str) -> str:
        """Say which of the variants, except the best, the corrected tests distinguish from the baseline."""
        rest = {label: d for label, d in self.differences.items() if label != best}
        if not rest or self.baseline not in self.measured:
            return ""
        said = []
        for how, higher in {"better": self.higher_is_better, "worse": not self.higher_is_better}.items():
            if found := [f"{label} (Holm {p_text(d.holm)})" for label, d in rest.items() if d.found(higher)]:
                said.append(f"{_are(found)} distinguishably {how} than the baseline")
        if not said:
            other = "other " if best not in ("", self.baseline) else ""
            return f"No {other}variant is distinguishable from the baseline."
        if left := [label for label, d in rest.items() if not d.distinguishable]:
            said.append(f"{_are(left)} not distinguishable from it")
        return f"{'; '.join(said)}."

    def rivals(self, best: str) -> str:
        """Say which variants the best cannot be distinguished from, beyond the baseline, its planned comparison."""
        others = [label for label in self.measured if label not in (best, self.baseline)]
        if best in ("", self.baseline) or not others or all(len(each) < 2 for each in self.measured.values()):
            return ""
        rivals = [label for label in others if not self.pairs[best, label].found(self.higher_is_better)]
        number = len(self.pairs) // 2
        family = f"(Holm over {f'all {number} pairs' if number > 1 else '1 pair'})"
        if rivals:
            return f"The best cannot be distinguished from {listed(rivals)} {family}."
        beyond = " beyond the baseline" if self.baseline in self.measured else ""
        return f"The best can be distinguished from every variant{beyond} {family}."

    def place(self, best: str, axis: Mapping[str, float], key: str) -> str:
        """Say where on a numeric key the best mean lies."""
        line = sorted({axis[label] for label in self.measured if label in axis})
        if best not in axis or len(line) < 2:
            return ""
        at = line.index(axis[best])
        place = f"Of the values of {key} from {line[0]:g} to {line[-1]:g} the best mean lies at {line[at]:g}"
        if at in (0, len(line) - 1):
            return f"{place}, an end of the range: values beyond it were not tried."
        return f"{place}, between {line[at - 1]:g} and {line[at + 1]:g}."


def _described(d: Difference) -> str:
    """`+0.004 [-0.002, +0.010], is not distinguishable from seed noise (Holm p = 0.31)`."""
    if d.holm is None:
        return f"{number(d.mean, sign=True)}, cannot be tested ({d.why})"
    interval = f"[{number(d.low, sign=True)}, {number(d.high, sign=True)}]"
    noise = f"is{'' if d.distinguishable else ' not'} distinguishable from seed noise"
    return f"{number(d.mean, sign=True)} {interval}, {noise} (Holm {p_text(d.holm)})"


def _seeds(n: int) -> str:
    return "one seed" if n == 1 else f"{n} seeds"


def _are(names: Sequence[str]) -> str:
    return f"{listed(names)} {'is' if len(names) == 1 else 'are'}"


def named(label: str) -> str:
    """Quote a label that would run into the sentence."""
    return f'"{label}"' if " " in label else label


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def number(value: float | None, sign: bool = False) -> str:
    """Format four digits, at most four decimals: 0.7123, -0.0021, 5.123, 12,345; a missing number is a dash."""
    if value is None:
        return "-"
    size, plus = abs(value), "+" if sign else ""
    if size == 0:
        return "0"
    if size >= 1e6 or size < 1e-4:
        return f"{value:{plus}.3g}"
    return f"{value:{plus},.{max(0, min(4, 3 - math.floor(math.log10(size))))}f}"


def p_text(p: float | None) -> str:
    """`p = 0.31`, `p < 0.001`."""
    if p is None:
        return "p undefined"
    return "p < 0.001" if p < 0.001 else f"p = {p:.2f}" if p >= 0.0995 else f"p = {p:.3f}"
