"""The verdict of an ablation in words. Variants are said to differ only if a test says so, and never to be equal."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from electra_lab.analysis.comparisons import Comparisons, compare, fewest_seeds, is_exploratory, untested
from electra_lab.analysis.intervals import ENOUGH, Difference, Values
from electra_lab.analysis.results import AVERAGE
from electra_lab.presentation.text import are, interval, listed, named, number, p_text

Axis = Mapping[str, float]  # by variant, the number that it sets, if the ablation varies one numeric key


@dataclass(frozen=True)
class Verdict:
    """Sentences, the main one of which is about the best variant, or says that none has learned anything."""

    sentences: list[str]
    main: str = ""


def judge(
    metric: str,
    values: Values,
    baseline: str,
    higher_is_better: bool = True,
    axis: Axis | None = None,
    key: str = "",
    compared: Comparisons | None = None,
    comparable: bool = True,
) -> Verdict:
    """Return the limits that the number of seeds sets, then the best variant.

    If no variant is better than the baselines that need no training, that comes first, and none is called the best.

    key         the name of the key that `axis` has the numbers of
    compared    the comparisons of the whole report; without them, the metric is the only one
    comparable  False if each run has its own task, so that a higher number is not a better one

    The best is judged over the seeds that all have: over its own, a variant would win by lacking an unlucky one.
    """
    compared = compared or compare({metric: values}, metric, baseline)
    values = {named(label): seeds for label, seeds in values.items()}
    axis = {named(label): at for label, at in (axis or {}).items()}
    measured = {label: seeds for label, seeds in values.items() if seeds}
    if not measured:
        return Verdict([f"Nothing can be said yet: {metric} is missing in every cell."])
    said = _Sentences(metric, measured, named(baseline), higher_is_better, compared, comparable)
    no_better, seeds = said.no_better(), said.seeds()
    if len(measured) == 1:
        [(label, by_seed)] = measured.items()
        mean = number(float(np.mean([*by_seed.values()])))
        alone = f"Only {label} has a value of {metric}, {mean}: there is nothing to compare."
        return Verdict([*filter(None, [no_better, seeds, alone])], no_better or alone)
    best, leader = said.leader()
    praised = "" if not comparable or best in said.unlearned else best
    nothing_learned = len(said.unlearned) == len(measured)
    sentences = [seeds, leader, said.others(best), said.rivals(praised), said.place(praised, axis, key)]
    sentences.insert(0 if nothing_learned else 2, no_better)
    if lacking := [label for label, by_seed in values.items() if not by_seed]:
        sentences.append(f"{listed(lacking)} {'has' if len(lacking) == 1 else 'have'} no value of {metric}.")
    if len({tuple(sorted(by_seed)) for by_seed in measured.values()}) > 1:
        sentences.append("The means below are not all over the same seeds; the differences are, pair by pair.")
    return Verdict([*filter(None, sentences)], no_better if nothing_learned else leader)


def leader(metric: str, values: Values, baseline: str, higher_is_better: bool, compared: Comparisons) -> str:
    """Return the name of the variant that `judge` calls the best; "" if it calls none so."""
    measured = {named(label): seeds for label, seeds in values.items() if seeds}
    said = _Sentences(metric, measured, named(baseline), higher_is_better, compared)
    best = said.leader()[0] if measured else ""
    return "" if best in said.unlearned else best


@dataclass(frozen=True)
class _Sentences:
    """The sentences about measured variants; each is "" if there is nothing to say."""

    metric: str
    measured: Values
    baseline: str
    higher_is_better: bool
    compared: Comparisons
    comparable: bool = True

    @cached_property
    def unlearned(self) -> list[str]:
        """The variants that are not better than every untrained baseline: by the tests; without one, by the means."""
        found, higher = dict[str, None](), self.higher_is_better
        for (label, _), d in self.compared.over_trivial.items():
            better = d.found(higher) if d.holm is not None else d.mean is None or (d.mean > 0) == higher
            if not better:
                found[named(label)] = None
        return [label for label in found if label in self.measured]

    def no_better(self) -> str:
        """Say which variants are not better than the baselines that need no training."""
        if not self.unlearned:
            return ""
        titles = list(dict.fromkeys(title for _, title in self.compared.over_trivial))
        tested = any(d.holm is not None for d in self.compared.over_trivial.values())
        said = (
            f"{'distinguishably ' if tested else ''}better than the baselines that need no training ({listed(titles)})"
        )
        if len(self.unlearned) < len(self.measured):
            return f"{are(self.unlearned)} not {said}."
        return f"No variant is {said}, so {self.metric} does not show that any of them has learned something."

    @cached_property
    def exploratory(self) -> bool:
        return is_exploratory(self.measured, self.baseline)

    @cached_property
    def differences(self) -> dict[str, Difference]:
        found = {named(label): d for label, d in self.compared.against(self.metric).items()}
        return {label: d for label, d in found.items() if label in self.measured}

    @cached_property
    def pairs(self) -> dict[tuple[str, str], Difference]:
        return {(named(a), named(b)): d for (a, b), d in self.compared.pairs(self.metric).items()}

    def seeds(self) -> str:
        n, few = fewest_seeds(self.measured, self.baseline), untested(self.measured, self.baseline)
        if few and not self.exploratory:
            common = f" in common with the baseline {self.baseline}" if self.baseline in self.measured else ""
            return f"{are(few)} not tested, with fewer than {ENOUGH} seeds{common}."
        if all(len(by_seed) == 1 for by_seed in self.measured.values()):
            return "With 1 seed this is exploratory: nothing can be distinguished from seed noise."
        others = [len(by_seed) for label, by_seed in self.measured.items() if label != self.baseline]
        if n < min([ENOUGH, *others]):
            pairs = f"only {_seeds(n)}" if n else "no seed"
            return f"As a variant shares {pairs} with the baseline {self.baseline}, this is exploratory."
        if n == 1:
            return "As not every variant has more than 1 seed, this is exploratory."
        return f"With {n} seeds this is exploratory." if n < ENOUGH else f"Every variant has {n} seeds or more."

    def leader(self) -> tuple[str, str]:
        """Return the best mean over the seeds that all have, "" if none may be called so; and a sentence about it."""
        measured, baseline, metric = self.measured, self.baseline, self.metric
        # The seeds that all have.
        shared = set.intersection(*map(set, measured.values()))
        partial = any(len(by_seed) > len(shared) for by_seed in measured.values())
        unmeasured = f"; the baseline {baseline} was not measured, so nothing is compared to it"
        alone = "" if baseline in measured else unmeasured
        if not shared:
            return "", f"There is no seed that all have, so none is called the best{alone}."
        # The best mean over them; of equal means, the baseline's.
        common = sorted(shared)
        means = {label: _mean(by_seed, common) for label, by_seed in measured.items()}
        top = (max if self.higher_is_better else min)(means.values())
        equal = [label for label, mean in means.items() if math.isclose(mean, top, rel_tol=1e-12)]
        best = baseline if baseline in equal else equal[0]
        which = "highest" if self.higher_is_better else "lowest"
        of_metric = metric if metric == AVERAGE else f"mean {metric}"
        over = f" over the {_seeds(len(shared))} that all have" if partial else ""
        if partial and self.exploratory:
            return "", f"{best} has the {which} {of_metric}{over}; with so few, none is called the best{alone}."
        # Nobody is the best whom a test over more seeds finds worse than another.
        ahead = {k: self._ahead(k) if partial else [] for k in means}
        if found := ahead[best]:
            said = f"{best} has the {which} {of_metric}{over}, but {are(found)} distinguishably better by more seeds"
            return "", f"{said}, so none is called the best{alone}."
        # The sentence.
        ties = [k for k in equal if k != best and not ahead[k]]
        good = which if not self.comparable or best in self.unlearned else f"best (the {which})"
        said = f"{best}{' (the baseline)' if best == baseline else ''} has the {good} {of_metric}{over}, "
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
        if not rest or self.baseline not in self.measured or self.exploratory:
            return ""
        said, higher = [], self.higher_is_better
        words = {"better": higher, "worse": not higher} if self.comparable else {"higher": True, "lower": False}
        for how, higher in words.items():
            if found := [f"{label} (Holm {p_text(d.holm)})" for label, d in rest.items() if d.found(higher)]:
                said.append(f"{are(found)} distinguishably {how} than the baseline")
        if not said:
            other = "other " if best not in ("", self.baseline) else ""
            tested = "tested " if any(d.holm is None for d in rest.values()) else ""
            return f"No {other}{tested}variant is distinguishable from the baseline."
        if left := [label for label, d in rest.items() if d.holm is not None and not d.distinguishable]:
            said.append(f"{are(left)} not distinguishable from it")
        return f"{'; '.join(said)}."

    def rivals(self, best: str) -> str:
        """Say which variants the best cannot be distinguished from, beyond the baseline, its planned comparison."""
        others = [label for label in self.measured if label not in (best, self.baseline)]
        if best in ("", self.baseline) or not others or self.exploratory:
            return ""
        pairs = {label: self.pairs[best, label] for label in others}
        rivals = [label for label, d in pairs.items() if d.p is not None and not d.found(self.higher_is_better)]
        few = [label for label, d in pairs.items() if d.p is None and d.n < ENOUGH]
        same = [label for label in pairs if label not in few and pairs[label].p is None]
        said = [f"cannot be distinguished from {listed(rivals)}"] if rivals else []
        said += [f"is not tested against {listed(few)}, as they share too few seeds"] if few else []
        said += [f"is not tested against {listed(same)}, as the difference is the same with every seed"] if same else []
        if said:
            return f"The best {', and '.join(said)}."
        beyond = " beyond the baseline" if self.baseline in self.measured else ""
        return f"The best can be distinguished from every variant{beyond}."

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
    if d.low is None:
        return f"{number(d.mean, sign=True)}, cannot be tested ({d.why})"
    if d.holm is None:
        return f"{number(d.mean, sign=True)} {interval(d)}, is not tested"
    noise = f"is{'' if d.distinguishable else ' not'} distinguishable from seed noise"
    return f"{number(d.mean, sign=True)} {interval(d)}, {noise} (Holm {p_text(d.holm)})"


def _mean(by_seed: Mapping[int, float], seeds: Sequence[int]) -> float:
    return float(np.mean([by_seed[seed] for seed in seeds]))


def _seeds(n: int) -> str:
    return "one seed" if n == 1 else f"{n} seeds"
