"""What a few seeds allow to be said: means, paired differences, corrected tests, and a verdict in plain words.

Every run of one seed shares its data order, masks and draws with the other variants' runs of that seed, so variants are
compared seed by seed: the difference of a pair is free of what the seed does to both. Intervals and tests are Student's
t, which takes the differences to be roughly normal; so few seeds cannot check that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
ALPHA = 0.05  # of the corrected tests: what is called distinguishable
ENOUGH = 5  # seeds; with fewer, a finding is a reason to look again

Values = Mapping[str, Mapping[int, float]]  # of one quantity: by variant, by seed


@dataclass(frozen=True)
class Estimate:
    """A mean of n numbers with its confidence interval; where there is no interval, `why` says so."""

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
    """A mean paired difference. `p` is two-sided and for this comparison alone, `holm` counts the others of its family.

    Both are None where nothing can be tested.
    """

    p: float | None = None
    holm: float | None = None

    @property
    def distinguishable(self) -> bool:
        """The corrected test tells it from seed noise."""
        return self.holm is not None and self.holm <= ALPHA

    def found(self, higher: bool) -> bool:
        """Distinguishable, and above zero, or below it."""
        return self.distinguishable and self.mean is not None and (self.mean > 0) == higher


Pairs = Mapping[tuple[str, str], Difference]  # the first minus the second


def estimate(values: Sequence[float]) -> Estimate:
    """The mean with Student's t interval, mean -+ t(0.975, n - 1) s / sqrt(n)."""
    return _t(values, max((abs(v) for v in values), default=0.0), "value")[0]


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference:
    """Ours minus theirs over the seeds that both have: the paired t interval and test (Student 1908)."""
    seeds = sorted(ours.keys() & theirs.keys())
    scale = max((abs(v) for seed in seeds for v in (ours[seed], theirs[seed])), default=0.0)
    found, p = _t([ours[seed] - theirs[seed] for seed in seeds], scale, "difference")
    return Difference(found.n, found.mean, found.low, found.high, found.why, p)


def _t(values: Sequence[float], scale: float, what: str) -> tuple[Estimate, float | None]:
    """Mean, interval and the p-value of a zero mean. `scale` is the size of the numbers that `values` came from."""
    n = len(values)
    if n == 0:
        return Estimate(0, None, why="no seed in common" if what == "difference" else "not measured"), None
    mean = float(np.mean(values))
    if n == 1:
        return Estimate(1, mean, why="one seed: no interval"), None
    deviation = float(np.std(values, ddof=1))
    # Equal numbers leave a spread of a rounding error or none; an interval of that width would claim certainty.
    if deviation <= 8 * np.finfo(float).eps * scale:
        return Estimate(n, mean, why=f"the same {what} with every seed: no interval"), None
    error = deviation / math.sqrt(n)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * error
    return Estimate(n, mean, mean - half, mean + half), float(2 * stats.t.sf(abs(mean) / error, n - 1))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjusted p-values, in the given order; what was not tested (None) is no part of the family.

    Holm (1979), A simple sequentially rejective multiple test procedure: with the m tests sorted, p(i) is multiplied by
    m - i + 1, kept from falling below its forerunner and from rising above 1. It bounds the chance of any false finding
    for tests that depend on each other in any way, as these do through the baseline that they share.
    """
    tested = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(tested):
        largest = min(1.0, max(largest, (len(tested) - rank) * p))
        adjusted[i] = largest
    return adjusted


def against(values: Values, baseline: str) -> dict[str, Difference]:
    """Each other variant minus the baseline; Holm over these comparisons, which were planned before the data."""
    theirs = values.get(baseline, {})
    found = {label: difference(ours, theirs) for label, ours in values.items() if label != baseline}
    corrected = holm([d.p for d in found.values()])
    return {label: replace(d, holm=p) for (label, d), p in zip(found.items(), corrected, strict=True)}


def pairwise(values: Values) -> dict[tuple[str, str], Difference]:
    """First minus second of every two variants, in both orders; Holm over all pairs.

    What is best is known only after the data are seen, so comparing it with its rivals has to be paid for as if every
    pair had been compared.
    """
    pairs = list(combinations(values, 2))
    found = [difference(values[a], values[b]) for a, b in pairs]
    result: dict[tuple[str, str], Difference] = {}
    for (a, b), d, p in zip(pairs, found, holm([d.p for d in found]), strict=True):
        result[a, b] = replace(d, holm=p)
        result[b, a] = replace(difference(values[b], values[a]), holm=p)
    return result


def fewest_seeds(values: Values, baseline: str) -> int:
    """The fewest that a measured variant shares with the baseline, the pairs of its difference; or has, without it."""
    theirs = values.get(baseline)
    return min((len(each.keys() & (theirs or each).keys()) for each in values.values() if each), default=0)


def is_exploratory(values: Values, baseline: str) -> bool:
    return fewest_seeds(values, baseline) < ENOUGH


def sentences(
    quantity: str,
    values: Values,
    baseline: str,
    higher_is_better: bool = True,
    axis: Mapping[str, float] | None = None,
    key: str = "",
) -> list[str]:
    """The verdict, one sentence an item: first how much the number of seeds allows, then what is best.

    axis   the number that each variant sets, where the ablation varies one numeric key; `key` is its name
    Nothing is said to differ unless the corrected test says so, and nothing is ever said to be equal. What is best is
    judged over the seeds that all have: over its own, a variant would win by lacking an unlucky one.
    """
    values, baseline = {named(label): each for label, each in values.items()}, named(baseline)
    axis = {named(label): at for label, at in (axis or {}).items()}
    measured = {label: each for label, each in values.items() if each}
    if not measured:
        return [f"Nothing can be said yet: no cell has a {quantity}."]
    said = [_seeds_sentence(measured, baseline)]
    if len(measured) == 1:
        [(label, each)] = measured.items()
        mean = float(np.mean(list(each.values())))
        return [*said, f"Only {label} has a {quantity}, {number(mean)}: there is nothing to compare."]

    differences, pairs = against(measured, baseline), pairwise(measured)
    best, told = _leader(quantity, measured, differences, pairs, baseline, higher_is_better)
    said.append(told)
    if baseline in measured:
        said.append(_others(differences, best, baseline, higher_is_better))
    if best:
        said += [_rivals(measured, pairs, best, baseline, higher_is_better), _place(measured, best, axis, key)]
    lacking = [label for label, each in values.items() if not each]
    if lacking:
        said.append(f"{_list(lacking)} {'has' if len(lacking) == 1 else 'have'} no {quantity}.")
    if len({tuple(sorted(each)) for each in measured.values()}) > 1:
        said.append("The means below are not all over the same seeds; the differences are, pair by pair.")
    return [sentence for sentence in said if sentence]


def _seeds_sentence(measured: Values, baseline: str) -> str:
    n, own = fewest_seeds(measured, baseline), min(len(each) for each in measured.values())
    if all(len(each) == 1 for each in measured.values()):
        return "With 1 seed this is exploratory: nothing can be told from seed noise."
    if n < min(own, ENOUGH):
        pairs = f"only {_seeds(n)}" if n else "no seed"
        return f"As a variant shares {pairs} with the baseline {baseline}, this is exploratory."
    if n == 1:
        return "As not every variant has more than 1 seed, this is exploratory."
    return f"With {n} seeds this is exploratory." if n < ENOUGH else f"Every variant has {n} seeds or more."


def _leader(
    quantity: str,
    measured: Values,
    differences: Mapping[str, Difference],
    pairs: Pairs,
    baseline: str,
    higher_is_better: bool,
) -> tuple[str, str]:
    """The best mean over the seeds that all have, "" if none may be called so; and the sentence that says it."""
    shared = set.intersection(*(set(each) for each in measured.values()))
    partial = any(len(each) > len(shared) for each in measured.values())
    alone = "" if baseline in measured else f"; the baseline {baseline} was not measured, so nothing is compared to it"
    if not shared:
        return "", f"There is no seed that all have, so none is called the best{alone}."
    means = {k: float(np.mean([v for seed, v in each.items() if seed in shared])) for k, each in measured.items()}
    best = _best(means, baseline, higher_is_better)
    ahead = {k: _ahead(k, differences, pairs, baseline, higher_is_better) if partial else [] for k in means}
    which = "highest" if higher_is_better else "lowest"
    over = f" over the {_seeds(len(shared))} that all have" if partial else ""
    if found := ahead[best]:
        told = f"{best} has the {which} mean {quantity}{over}, but {_list(found)} {_are(found)} distinguishably better"
        return "", f"{told} by more seeds, so none is called the best{alone}."
    ties = [k for k in means if k != best and not ahead[k] and math.isclose(means[k], means[best], rel_tol=1e-12)]
    told = f"{best}{' (the baseline)' if best == baseline else ''} has the best (the {which}) mean {quantity}{over}, "
    told += f"{number(means[best])}{f', as has {_list(ties)}' if ties else ''}{alone}"
    if alone or best == baseline:
        return best, f"{told}."
    both = f" over the {_seeds(differences[best].n)} that both have" if differences[best].n > len(shared) else ""
    return best, f"{told}; its difference to the baseline {baseline}{both}, {_told(differences[best])}."


def _best(means: Mapping[str, float], baseline: str, higher_is_better: bool) -> str:
    """The best mean; of equal ones the baseline, then the first."""
    sign = 1 if higher_is_better else -1
    top = max(sign * mean for mean in means.values())
    equal = [label for label, mean in means.items() if math.isclose(sign * mean, top, rel_tol=1e-12)]
    return baseline if baseline in equal else equal[0]


def _ahead(
    label: str,
    differences: Mapping[str, Difference],
    pairs: Pairs,
    baseline: str,
    higher_is_better: bool,
) -> list[str]:
    """Those that a corrected test, of the differences to the baseline or of all pairs, finds better than this one."""
    found = [b for (a, b), d in pairs.items() if a == label and d.found(not higher_is_better)]
    if label == baseline:
        found += [other for other, d in differences.items() if d.found(higher_is_better)]
    elif differences[label].found(not higher_is_better):
        found.append(baseline)
    return list(dict.fromkeys(found))


def _told(d: Difference) -> str:
    """`+0.004 [-0.002, +0.010], is not distinguishable from seed noise (Holm p = 0.31)`."""
    if d.holm is None:
        return f"{number(d.mean, sign=True)}, cannot be tested ({d.why})"
    interval = f"[{number(d.low, sign=True)}, {number(d.high, sign=True)}]"
    told = "is distinguishable" if d.distinguishable else "is not distinguishable"
    return f"{number(d.mean, sign=True)} {interval}, {told} from seed noise (Holm {p_text(d.holm)})"


def _others(differences: Mapping[str, Difference], best: str, baseline: str, higher_is_better: bool) -> str:
    """Of the variants but the best, if one is: which the corrected tests tell from the baseline, which they do not."""
    rest = {label: d for label, d in differences.items() if label != best}
    if not rest:
        return ""
    groups: dict[str, list[str]] = {"better than": [], "worse than": []}
    for label, d in rest.items():
        if d.distinguishable:
            how = "better than" if d.found(higher_is_better) else "worse than"
            groups[how].append(f"{label} (Holm {p_text(d.holm)})")
    said = [
        f"{_list(found)} {_are(found)} distinguishably {how} the baseline" for how, found in groups.items() if found
    ]
    if not said:
        return f"No {'other ' if best not in ('', baseline) else ''}variant is distinguishable from the baseline."
    if left := [label for label, d in rest.items() if not d.distinguishable]:
        said.append(f"{_list(left)} {_are(left)} not distinguishable from it")
    return f"{'; '.join(said)}."


def _rivals(
    measured: Values,
    pairs: Pairs,
    best: str,
    baseline: str,
    higher_is_better: bool,
) -> str:
    """Which variants the best one cannot be told from, beyond the baseline, with which it was compared as planned."""
    others = [label for label in measured if label not in (best, baseline)]
    if best == baseline or not others or all(len(each) < 2 for each in measured.values()):
        return ""
    rivals = [label for label in others if not pairs[best, label].found(higher_is_better)]
    family = f"(Holm over {'all ' * (len(pairs) > 2)}{len(pairs) // 2} pair{'s' * (len(pairs) > 2)})"
    beyond = " beyond the baseline" if baseline in measured else ""
    if not rivals:
        return f"The best can be told from every variant{beyond} {family}."
    return f"The best cannot be told from {_list(rivals)} {family}."


def _place(measured: Values, best: str, axis: Mapping[str, float], key: str) -> str:
    """Where on a numeric key the best mean lies."""
    line = sorted({axis[label] for label in measured if label in axis})
    if best not in axis or len(line) < 2:
        return ""
    at = line.index(axis[best])
    place = f"Of the values of {key} from {line[0]:g} to {line[-1]:g} the best mean lies at {line[at]:g}"
    if at in (0, len(line) - 1):
        return f"{place}, an end of the range: what lies beyond it was not tried."
    return f"{place}, between {line[at - 1]:g} and {line[at + 1]:g}."


def _seeds(n: int) -> str:
    return "one seed" if n == 1 else f"{n} seeds"


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def named(label: str) -> str:
    """In quotes, if it would run into the sentence."""
    return f'"{label}"' if " " in label else label


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def number(value: float | None, sign: bool = False) -> str:
    """Four digits, no more than four decimals: 0.7123, -0.0021, 5.123, 12,345; what is not there is a dash."""
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
