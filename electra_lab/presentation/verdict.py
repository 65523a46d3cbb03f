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
    """Sentences. The main one says that none has learned anything, that no test tells them apart, or which is best."""

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

    If no variant is better than the baselines that need no training, that comes first, and none is called the best. If
    no test distinguishes any two of them, that comes before the best mean.

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
    say = _Sentences(metric, measured, named(baseline), higher_is_better, compared, comparable)
    no_better, seeds = say.no_better(), say.seeds()
    if len(measured) == 1:
        [(label, by_seed)] = measured.items()
        mean = number(float(np.mean([*by_seed.values()])))
        alone = f"Only {label} has a value of {metric}, {mean}: there is nothing to compare."
        return Verdict([*filter(None, [no_better, seeds, alone])], no_better or alone)
    # If none of several has learned anything, that comes first.
    best, leader = say.leader()
    praised = "" if not comparable or best in say.unlearned else best
    nothing_learned = len(say.unlearned) == len(measured)
    none = say.none()
    sentences = [seeds, none, leader, "" if none else say.others(best), say.rivals(praised)]
    sentences.append(say.place(praised, axis, key))
    sentences.insert(0 if nothing_learned else 3, no_better)
    if lacking := [label for label, by_seed in values.items() if not by_seed]:
        sentences.append(f"{listed(lacking)} {'has' if len(lacking) == 1 else 'have'} no value of {metric}.")
    if len({tuple(sorted(by_seed)) for by_seed in measured.values()}) > 1:
        sentences.append("The means below are not all over the same seeds; the differences are, pair by pair.")
    main = no_better if nothing_learned else seeds if say.exploratory else none or leader
    return Verdict([*filter(None, sentences)], main)


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
        no_better = []
        for (label, _), d in self.compared.over_trivial.items():
            if d.holm is not None:
                better = d.found(self.higher_is_better)
            else:
                better = d.mean is None or (d.mean > 0) == self.higher_is_better
            if not better and named(label) in self.measured:
                no_better.append(named(label))
        return list(dict.fromkeys(no_better))

    def no_better(self) -> str:
        """Say which variants are not better than the baselines that need no training."""
        if not self.unlearned:
            return ""
        titles = list(dict.fromkeys(title for _, title in self.compared.over_trivial))
        tested = any(d.holm is not None for d in self.compared.over_trivial.values())
        how = "distinguishably better" if tested else "better"
        better = f"{how} than the baselines that need no training ({listed(titles)})"
        if len(self.unlearned) < len(self.measured):
            return f"{are(self.unlearned)} not {better}."
        return f"No variant is {better}, so {self.metric} does not show that any of them has learned something."

    def none(self) -> str:
        """Say that no test distinguishes two variants."""
        compared = [*self.differences.values(), *self.pairs.values()]
        if any(d.distinguishable for d in compared) or all(d.holm is None for d in compared):
            return ""
        tested = "tested " if any(d.holm is None for d in self.differences.values()) else ""
        return f"No {tested}variant is distinguishable from another."

    @cached_property
    def exploratory(self) -> bool:
        return is_exploratory(self.measured, self.baseline)

    @cached_property
    def differences(self) -> dict[str, Difference]:
        differences = {named(label): d for label, d in self.compared.against(self.metric).items()}
        return {label: d for label, d in differences.items() if label in self.measured}

    @cached_property
    def pairs(self) -> dict[tuple[str, str], Difference]:
        return {(named(a), named(b)): d for (a, b), d in self.compared.pairs(self.metric).items()}

    def seeds(self) -> str:
        """Say how far the number of seeds allows tests."""
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
        measured, baseline = self.measured, self.baseline
        alone = ""
        if baseline not in measured:
            alone = f"; the baseline {baseline} was not measured, so nothing is compared to it"
        # The seeds that all have.
        shared = sorted(set.intersection(*map(set, measured.values())))
        partial = any(len(by_seed) > len(shared) for by_seed in measured.values())
        if not shared:
            return "", f"There is no seed that all have, so none is called the best{alone}."
        # The best mean over them; of equal means, the baseline's.
        means = {label: _mean(by_seed, shared) for label, by_seed in measured.items()}
        top = max(means.values()) if self.higher_is_better else min(means.values())
        equal = [label for label, mean in means.items() if math.isclose(mean, top, rel_tol=1e-12)]
        best = baseline if baseline in equal else equal[0]
        which = "highest" if self.higher_is_better else "lowest"
        mean = self.metric if self.metric == AVERAGE else f"mean {self.metric}"
        if partial:
            mean += f" over the {_seeds(len(shared))} that all have"
        if partial and self.exploratory:
            return "", f"{best} has the {which} {mean}; with so few, none is called the best{alone}."
        # No variant is the best if a test over more seeds finds another one better.
        ahead = {label: self._ahead(label) if partial else [] for label in means}
        if ahead[best]:
            sentence = f"{best} has the {which} {mean}, but {are(ahead[best])} distinguishably better by more seeds"
            return "", f"{sentence}, so none is called the best{alone}."
        # The sentence.
        title = f"{best} (the baseline)" if best == baseline else best
        good = which if not self.comparable or best in self.unlearned else f"best (the {which})"
        sentence = f"{title} has the {good} {mean}, {number(means[best])}"
        ties = [label for label in equal if label != best and not ahead[label]]
        if ties:
            sentence += f", as has {listed(ties)}"
        if alone or best == baseline:
            return best, f"{sentence}{alone}."
        d = self.differences[best]
        both = f" over the {_seeds(d.n)} that both have" if d.n > len(shared) else ""
        return best, f"{sentence}; its difference to the baseline {baseline}{both}, {_described(d)}."

    def _ahead(self, label: str) -> list[str]:
        """Return the variants that a corrected test, against the baseline or of all pairs, finds better than this."""
        higher = self.higher_is_better
        better = [b for (a, b), d in self.pairs.items() if a == label and d.found(not higher)]
        if label == self.baseline:
            better += [other for other, d in self.differences.items() if d.found(higher)]
        elif self.differences[label].found(not higher):
            better.append(self.baseline)
        return list(dict.fromkeys(better))

    def others(self, best: str) -> str:
        """Say which of the variants, except the best, the corrected tests distinguish from the baseline."""
        rest = {label: d for label, d in self.differences.items() if label != best}
        if not rest or self.baseline not in self.measured or self.exploratory:
            return ""
        # The distinguishable ones, then the others that were tested.
        words = {"higher": True, "lower": False}
        if self.comparable:
            words = {"better": self.higher_is_better, "worse": not self.higher_is_better}
        clauses = []
        for how, higher in words.items():
            clear = [f"{label} (Holm {p_text(d.holm)})" for label, d in rest.items() if d.found(higher)]
            if clear:
                clauses.append(f"{are(clear)} distinguishably {how} than the baseline")
        if not clauses:
            other = "other " if best not in ("", self.baseline) else ""
            tested = "tested " if any(d.holm is None for d in rest.values()) else ""
            return f"No {other}{tested}variant is distinguishable from the baseline."
        if unclear := [label for label, d in rest.items() if d.holm is not None and not d.distinguishable]:
            clauses.append(f"{are(unclear)} not distinguishable from it")
        return f"{'; '.join(clauses)}."

    def rivals(self, best: str) -> str:
        """Say which variants the best cannot be distinguished from, beyond the baseline, its planned comparison."""
        others = [label for label in self.measured if label not in (best, self.baseline)]
        if best in ("", self.baseline) or not others or self.exploratory:
            return ""
        pairs = {label: self.pairs[best, label] for label in others}
        rivals = [label for label, d in pairs.items() if d.p is not None and not d.found(self.higher_is_better)]
        few = [label for label, d in pairs.items() if d.p is None and d.n < ENOUGH]
        same = [label for label, d in pairs.items() if d.p is None and d.n >= ENOUGH]
        clauses = []
        if rivals:
            clauses.append(f"cannot be distinguished from {listed(rivals)}")
        if few:
            clauses.append(f"is not tested against {listed(few)}, as they share too few seeds")
        if same:
            clauses.append(f"is not tested against {listed(same)}, as the difference is the same with every seed")
        if clauses:
            return f"The best {', and '.join(clauses)}."
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
