"""The verdict of an ablation: a table of the leading metric, and at most four sentences. All words about p values.

Variants are said to differ only if a test says so, and never to be equal.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from electra_lab.analysis.comparisons import Comparisons, fewest_seeds, is_exploratory
from electra_lab.analysis.intervals import ALPHA, ENOUGH, MANY_DOCUMENTS, Difference, Estimate, Values, estimate
from electra_lab.analysis.power import POWER, Spread, detectable, smallest, spread
from electra_lab.analysis.results import AVERAGE, Results, expected
from electra_lab.presentation.text import Table, are, counted, interval, listed, named, number
from electra_lab.storage.plan import PlannedSearch
from registry import Metric

MEANS = "Mean ± half of its 95% t interval over seeds; where that meets a bound of the metric, its ends in brackets."
SENTENCES = 4


def caution(search: PlannedSearch | None) -> str:
    """Warn of the luck of the best trial; "" without several trials."""
    if search is None or len(search.begun) < 2:
        return ""
    return f"The best of {len(search.begun)} trials is partly luck unless it is confirmed on fresh seeds."


@dataclass(frozen=True)
class Row:
    """A variant's row in the table of one metric."""

    variant: str
    mean: Estimate
    difference: Difference | None  # None for the baseline itself
    metric: Metric
    lacks: bool  # some of its cells were measured and do not have the metric

    @property
    def mean_text(self) -> str:
        """`0.7123 ± 0.0045`, or `0.9900 [0.9100, 1.0000]` at a bound of the metric."""
        mean = self.mean
        if mean.half is None or mean.low is None or mean.high is None:
            return number(mean.mean)
        at_bound = self.metric.bounds and (mean.low <= self.metric.bounds[0] or mean.high >= self.metric.bounds[1])
        limits = f"[{number(mean.low)}, {number(mean.high)}]" if at_bound else f"± {number(mean.half)}"
        return f"{number(mean.mean)} {limits}"

    @property
    def difference_text(self) -> str:
        """`+0.0042 [-0.0021, +0.0105]`, with the number of pairs if that is not the row's number of seeds."""
        d = self.difference
        if d is None or d.mean is None:
            return "baseline" if d is None else "-"
        pairs = f" over {counted(d.n, 'pair')}" if d.n != self.mean.n else ""
        return f"{number(d.mean, sign=True)} {interval(d)}".rstrip() + pairs

    @property
    def reading(self) -> str:
        """The conclusion that the difference allows."""
        d = self.difference
        if self.mean.mean is None:
            return "not available" if self.lacks else self.mean.why
        if d is None or not d.distinguishable:
            return (d.why if d else "") or self.mean.why
        higher = d.differs(higher=True)
        if not self.metric.comparable:
            return "higher" if higher else "lower"
        return "better" if higher == self.metric.higher_is_better else "worse"


# The columns of the table of a metric, with the text of a row in each.
COLUMNS: dict[str, Callable[[Row], str]] = {
    "variant": lambda row: row.variant,
    "seeds": lambda row: str(row.mean.n),
    "mean": lambda row: row.mean_text,
    "difference": lambda row: row.difference_text,
    "Holm p": lambda row: p_text(row.difference.holm if row.difference else None),
    "reading": lambda row: row.reading,
}
PROSE = ["reading"]  # columns of words, not of numbers


def p_text(p: float | None) -> str:
    """`0.31`, `< 0.001`, `0.0504`, which is not below the limit; a dash for a difference that is not tested."""
    if p is None:
        return "-"
    if p < 0.001:
        return "< 0.001"
    digits = 2 if p >= 0.0995 else 3
    while (round(p, digits) <= ALPHA) != (p <= ALPHA):
        digits += 1
    return f"{p:.{digits}f}"


def note(metric: str, baseline: str, *, exploratory: bool) -> str:
    """Explain the columns of the tables of all metrics."""
    text = (
        f"{MEANS} The difference is to the baseline {baseline}, seed by seed, with a 95% interval for this comparison "
        "alone, which includes other documents and references where they were measured, and holds from about "
        f"{MANY_DOCUMENTS} documents on; Holm's p accounts for all comparisons of this page together: four fifths of "
        f"the error rate are reserved for the planned comparisons, of {metric} with the baseline; all other metrics "
        f"are secondary. The reading is better or worse if p is at most {ALPHA}; higher or lower if each cell has its "
        "own task, as a better number does not mean a better model then."
    )
    few = f" With fewer than {ENOUGH} seeds nothing is tested: take differences as a reason to look again."
    return text + few if exploratory else text


def tables(results: Results) -> list[tuple[str, Metric, Table]]:
    """Return the table of each metric that some cell has, the leading one first."""
    of_metrics, nothing = [], Difference(0, None, why="needs no training")
    for name, metric in results.plan.metrics.items():
        if results.has(name) and name not in results.plan.trivial:
            rows = comparison(results, name, metric)
            for title, mean in results.trivial(name).items():
                rows.append(Row(title, Estimate(len(results.plan.seeds), mean), nothing, metric, False))
            lines = []
            for row in rows:
                lines.append([text(row) for text in COLUMNS.values()])
            of_metrics.append((name, metric, Table(f"{name}, {metric.direction}", [*COLUMNS], lines, PROSE)))
    return of_metrics


def comparison(results: Results, name: str, metric: Metric) -> list[Row]:
    """Return each variant's mean of a metric, and its difference to the baseline."""
    differences = results.comparisons.against(name)
    rows = []
    for label, seeds in results.values(name).items():
        mean = estimate([*seeds.values()], metric.bounds)
        difference = None if label == results.plan.baseline else differences.get(label, Difference(0, None))
        lacks = any(cell.status in ("done", "pruned") and name not in cell.metrics for cell in results.of(label))
        rows.append(Row(label, mean, difference, metric, lacks))
    return rows


def verdict(results: Results) -> list[str]:
    """Return the conclusions about the leading metric, the main one first, and their limits."""
    plan = results.plan
    leading, values = plan.metrics[plan.metric], results.values(plan.metric)
    sentences = conclusions(plan.metric, leading, values, plan.baseline, results.comparisons)
    if not leading.comparable:
        sentences.append("Each cell is measured on its own task, so the best number may not mean the best model.")
    if plan.gaps and plan.metric == AVERAGE and not results.has(AVERAGE):
        sentences.append(f"There is no average without {listed([*plan.gaps])}, whose data is not here.")
    compared = results.comparisons.against(plan.metric)
    sentences += _narrow(compared)
    differences = [d for d in compared.values() if d.n]
    if differences and not is_exploratory(values, plan.baseline):
        tested = [d.n for d in differences if d.p is not None]
        spreads = [expected(plan), spread(differences, "by these cells")]
        sentences.append(power(plan.metric, min(tested, default=0), len(tested), [*filter(None, spreads)]))
    return [*filter(None, sentences)][:SENTENCES]


def conclusions(metric: str, leading: Metric, values: Values, baseline: str, compared: Comparisons) -> list[str]:
    """Return sentences: whether variants differ, the best one, and those that have not learned anything.

    The best is judged over the same seeds of all: over its own, a variant would win by lacking an unlucky one. If no
    variant is better than the baselines that need no training, that comes first, and none is called the best.
    """
    measured = {label: seeds for label, seeds in values.items() if seeds}
    if not measured:
        return [f"Nothing can be said yet: {metric} is missing in every cell."]
    unlearned = _unlearned(leading.higher_is_better, compared)
    no_better = _no_better(metric, unlearned, measured, compared)
    if len(measured) == 1:
        claim = f"Only {named(*measured)} has a value of {metric}: there is nothing to compare."
    else:
        claim = _claim(metric, leading, measured, baseline, compared, unlearned)
    sentences = [no_better, claim] if len(unlearned) == len(measured) else [claim, no_better]
    return [*filter(None, sentences)]


def _claim(
    metric: str, leading: Metric, measured: Values, baseline: str, compared: Comparisons, unlearned: Sequence[str]
) -> str:
    """Say whether tests distinguish variants, and if so, which one has the best mean."""
    if is_exploratory(measured, baseline):
        n = fewest_seeds(measured, baseline)
        common = "in common with the baseline " if any(len(seeds) != n for seeds in measured.values()) else ""
        return f"With {counted(n, 'seed')} {common}this is exploratory: differences are tested from {ENOUGH} seeds on."
    both = {(baseline, label): d for label, d in compared.against(metric).items() if label in measured}
    both |= compared.pairs(metric)
    if not any(d.distinguishable for d in both.values()):
        tested = "tested " if any(d.holm is None for d in both.values()) else ""
        return f"No {tested}variant is distinguishable from another."
    if len({frozenset(seeds) for seeds in measured.values()}) > 1:
        return "Some variants differ, but not all have the same seeds, so none is called the best."
    # The best mean, and the variants that a test distinguishes from it.
    means = {label: float(np.mean([*seeds.values()])) for label, seeds in measured.items()}
    top = (max if leading.higher_is_better else min)(means.values())
    best = [label for label, mean in means.items() if math.isclose(mean, top, rel_tol=1e-12)]
    apart = {frozenset(pair) for pair, d in both.items() if d.distinguishable}
    rivals = [label for label in means if label not in best and {best[0], label} not in apart]
    which = "highest" if leading.higher_is_better else "lowest"
    good = f"best (the {which})" if leading.comparable and not {*best} & {*unlearned} else which
    mean = metric if metric == AVERAGE else f"mean {metric}"
    claim = f"{listed([*map(named, best)])} {'has' if len(best) == 1 else 'have'} the {good} {mean}, {number(top)}"
    if len(best) + len(rivals) == len(means):
        return f"{claim}, but no test distinguishes it from another variant."
    others = f"all but {listed([*map(named, rivals)])}" if rivals else "every other variant"
    return f"{claim}; tests distinguish it from {others}."


def _unlearned(higher_is_better: bool, compared: Comparisons) -> list[str]:
    """Return the variants that are not better than every untrained baseline: by the tests, or else by the means."""
    labels = dict[str, None]()
    for (label, _), d in compared.over_trivial.items():
        by_means = d.mean is None or (d.mean > 0) == higher_is_better
        better = by_means if d.holm is None else d.differs(higher_is_better)
        if not better:
            labels[label] = None
    return [*labels]


def _no_better(metric: str, unlearned: Sequence[str], measured: Values, compared: Comparisons) -> str:
    """Say which variants are not better than the baselines that need no training."""
    if not unlearned:
        return ""
    titles = list(dict.fromkeys(title for _, title in compared.over_trivial))
    tested = any(d.holm is not None for d in compared.over_trivial.values())
    how = "distinguishably better" if tested else "better"
    better = f"{how} than the baselines that need no training ({listed(titles)})"
    if len(unlearned) < len(measured):
        return f"{are([*map(named, unlearned)])} not {better}."
    return f"No variant is {better}, so {metric} does not show that any of them has learned something."


def _narrow(compared: Mapping[str, Difference]) -> Iterator[str]:
    """Yield the reasons why intervals may be too narrow: other documents or references that they do not cover."""
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
            f"There are only {min(documents)} test documents: if a few of them make most of a difference, its interval "
            f"is too narrow and its p value too small. From {MANY_DOCUMENTS} documents on, they hold."
        )


def power(metric: str, seeds: int, comparisons: int, spreads: Sequence[Spread]) -> str:
    """Describe the differences that can be found, given their known spread; "" if there is nothing to compare."""
    size = detectable(seeds, comparisons)
    if size is None:
        few = f"With {counted(seeds, 'seed')} no difference is tested; from {ENOUGH} seeds on, they are."
        return few if seeds < ENOUGH else ""
    claim = f"With {seeds} seeds, {POWER:.0%} of such ablations find a difference of"
    if not spreads:
        return (
            f"{claim} {size:.2g} standard deviations (of the differences between two variants with the same seed). "
            "Pilot runs tell how much that is: set `power` in the file of the ablation."
        )
    sizes = [_size(spread, metric, seeds, comparisons) for spread in spreads]
    return f"{claim} {', and of '.join(sizes)}."


def _size(spread: Spread, metric: str, seeds: int, comparisons: int) -> str:
    """Describe the smallest difference that is found, and the spread that it follows from."""
    size = number(smallest(spread, seeds, comparisons))
    varies = f"standard deviation of paired differences {number(spread.sd)}"
    deviations = {name: math.sqrt(layer.beyond) for name, layer in spread.shared.items()}
    shares = [f"{number(deviation)} by other {name}" for name, deviation in deviations.items() if deviation]
    if shares:
        varies += f", and {listed(shares)}, which more seeds do not reduce"
    return f"{size} in {metric}, judging {spread.source} ({varies})"
