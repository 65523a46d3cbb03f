"""The comparison of runs: one page, and the same tables for the terminal and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from electra_lab.analysis.records import curve, is_number, points, titled
from electra_lab.analysis.run_comparison import Subject, changes, differing, obstacles, same_rows, side_by_side
from electra_lab.presentation.pages import Chart, overlay, render
from electra_lab.presentation.run_page import CURVES, OWN_TASK, Token, examples_of, excerpt, heading, verdicts
from electra_lab.presentation.sweep_figures import keys
from electra_lab.presentation.sweep_page import conditions
from electra_lab.presentation.text import Table, counted, listed, number, shown
from registry import Metric
from registry.errors import guide

AXES = {"step": "step", "tokens": "training tokens", "flops": "training FLOPs"}
MOST_KEYS = 4  # that are named in a sentence
MOST_CURVES = 5  # metrics that are drawn, over each of the axes
UNTESTED = (
    "Nothing is tested here. Another seed changes every number, and one run of each setting does not show by how much. "
    "So a difference may be due to the seed. To test it, repeat the settings over seeds with electra-lab ablate "
    f"({guide('ablations')})."
)


@dataclass(frozen=True)
class Measured:
    """The numbers of a measure that is the same for all runs, by the label of each."""

    name: str
    metrics: Mapping[str, Metric]
    numbers: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Comparison:
    """The parts of a comparison."""

    subjects: Sequence[Subject]
    measured: Measured | None = None

    @cached_property
    def obstacles(self) -> list[str]:
        return obstacles(self.subjects)

    @cached_property
    def rows(self) -> list[tuple[Sequence[Token], ...]]:
        """The excerpts of each test row, by run; empty if the runs have other rows."""
        if not same_rows(self.subjects):
            return []
        return list(zip(*(examples_of(subject.directory) for subject in self.subjects), strict=False))

    @property
    def labels(self) -> list[str]:
        return [subject.label for subject in self.subjects]

    @property
    def not_comparable(self) -> str:
        """Say why no metric of the tests compares the runs; "" if they have the same test."""
        if not self.obstacles:
            return ""
        keys, more = self.obstacles[:MOST_KEYS], len(self.obstacles) - MOST_KEYS
        keys = [*keys, counted(more, "more key")] if more > 0 else keys
        verb = "differs" if len(keys) == 1 else "differ"
        return f"The runs were not tested on the same task: {listed(keys)} {verb}."

    def metrics(self) -> dict[str, Metric]:
        """Return the metrics of the last evaluations, those that compare the runs first."""
        metrics = dict[str, Metric]()
        for subject in self.subjects:
            for name, metric in subject.metrics.items():
                metrics.setdefault(name, metric)
        return dict(sorted(metrics.items(), key=lambda item: not item[1].comparable))

    def reading(self, metric: Metric) -> str:
        """Say how the numbers of a metric may be read."""
        if not metric.comparable:
            return "not comparable (own task)"
        return "not comparable (other test)" if self.obstacles else metric.direction

    def tables(self) -> list[Table]:
        """Return all tables; one without rows says that nothing differs."""
        # Differences, and the measure that is the same for all.
        labels = self.labels
        differ = [[key, *map(_value, values)] for key, values in changes(self.subjects).items()]
        tables = [Table("What differs in the config", ["key", *labels], differ, labels), self._conditions()]
        if self.measured:
            tables.append(self._of_measure(self.measured))
        # The runs' own evaluations.
        lasts = [subject.last for subject in self.subjects]
        rows = [["measured on", *(last.get("split", "-") for last in lasts), ""]]
        rows += [["after step", *(f"{last['step']:,}" if last else "-" for last in lasts), ""]]
        for name, metric in self.metrics().items():
            numbers = [number(subject.last.get(name)) for subject in self.subjects]
            rows.append([metric.title, *numbers, self.reading(metric)])
        tables.append(Table("Results of each run's own evaluation", ["metric", *labels, "reading"], rows, ["reading"]))
        tables.append(self._costs())
        return tables

    def _conditions(self) -> Table:
        differ = differing([dict(conditions(subject.began)) for subject in self.subjects])
        rows = [[fact, *map(_value, values)] for fact, values in differ.items()]
        return Table("What differs in data, code and machine", ["fact", *self.labels], rows, self.labels)

    def _of_measure(self, measured: Measured) -> Table:
        trivial = set[str]().union(*(metric.baselines for metric in measured.metrics.values()))
        rows = []
        for name, metric in measured.metrics.items():
            numbers = [number(measured.numbers[label].get(name)) for label in self.labels]
            reading = "needs no training" if name in trivial else metric.direction
            rows.append([metric.title or name, *numbers, reading])
        title = f"{measured.name}: the same task for all"
        return Table(title, ["metric", *self.labels, "reading"], rows, ["reading"])

    def _costs(self) -> Table:
        costs = side_by_side([subject.costs for subject in self.subjects])
        rows = [[name, *map(partial(_cost, name), values)] for name, values in costs.items()]
        return Table("Costs", ["", *self.labels], rows)

    def verdicts(self) -> dict[str, list[str]]:
        """Return the sentences on what was learned, by the label of the run."""
        sentences = dict[str, list[str]]()
        for subject in self.subjects:
            judged = verdicts(subject.last, subject.began) if subject.last else []
            sentences[subject.label] = [str(verdict) for verdict in judged]
        return sentences

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the pictures as plain data for JSON."""
        differ, judged, metrics = changes(self.subjects), self.verdicts(), self.metrics()
        facts = [row[0] for row in self._conditions().rows]
        runs = []
        for i, subject in enumerate(self.subjects):
            facts_of_run = dict(conditions(subject.began))
            run: dict[str, Any] = {
                "label": subject.label,
                "path": str(subject.directory.path),
                "config": {key: values[i] for key, values in differ.items()},
                "conditions": {fact: facts_of_run.get(fact) for fact in facts},
                "measured": {"step": subject.last.get("step"), "split": subject.last.get("split")},
                "metrics": {name: subject.last.get(name) for name in metrics},
                "costs": subject.costs,
                "verdicts": judged[subject.label],
            }
            if self.measured:
                run["on"] = dict(self.measured.numbers[subject.label])
            runs.append(run)
        comparable = [name for name, metric in metrics.items() if metric.comparable and not self.obstacles]
        return {"runs": runs, "comparable": comparable, "other_test": list(self.obstacles)}


def text(comparison: Comparison) -> str:
    """Return the comparison for a terminal."""
    lines = [f"{subject.label}  {subject.directory.path}" for subject in comparison.subjects]
    for table in comparison.tables():
        lines += ["", table.title, table.text() if table.rows else "  nothing"]
    lines.append("")
    if comparison.not_comparable:
        lines.append(comparison.not_comparable)
    for label, sentences in comparison.verdicts().items():
        lines += [f"{label}: {sentence}" for sentence in sentences]
    for row in comparison.rows:
        lines.append("")
        lines += [f"{label}: {excerpt(tokens)}" for label, tokens in zip(comparison.labels, row, strict=True)]
    return "\n".join([*lines, "", UNTESTED])


def page(comparison: Comparison) -> str:
    """Return the page, complete in itself."""
    differ, facts, *results, costs = comparison.tables()
    return render(
        "compare.html.j2",
        title=f"{len(comparison.subjects)} runs compared",
        comparison=comparison,
        untested=UNTESTED,
        own_task=OWN_TASK,
        keys=keys(comparison.labels),
        differences=[differ, facts],
        results=results,
        costs=costs,
        curves=_curves(comparison),
        rows=[zip(comparison.labels, row, strict=True) for row in comparison.rows],
    )


def _curves(comparison: Comparison) -> dict[str, list[Chart]]:
    """Return, by heading, a metric over steps, tokens and FLOPs: on validation text, or training text without it."""
    metrics = dict[str, Metric]()
    for subject in comparison.subjects:
        metrics |= titled(subject.began.metrics)
    charts = dict[str, list[Chart]]()
    for name in sorted(metrics, key=lambda name: not metrics[name].comparable):
        split = next((split for split in ("validation", "train") if _is_curve(comparison, split, name)), "")
        if split and metrics[name].chart and len(charts) < MOST_CURVES:
            title = f"{heading(metrics[name])}, on {CURVES[split]} text: {comparison.reading(metrics[name])}"
            charts[title] = [_overlay(comparison, title, split, name, axis) for axis in AXES]
    return charts


def _is_curve(comparison: Comparison, split: str, name: str) -> bool:
    return any(len(points(subject.records, split, name)) > 1 for subject in comparison.subjects)


def _overlay(comparison: Comparison, title: str, split: str, name: str, axis: str) -> Chart:
    """Draw a metric of all runs over one axis."""
    lines = [(*curve(subject.records, split, name, axis), i) for i, subject in enumerate(comparison.subjects)]
    return overlay(
        f"{name}-{axis}", f"by {AXES[axis]}", f"{title}, by {AXES[axis]}", lines, AXES[axis], comparison.labels
    )


def _value(value: Any) -> str:
    return "-" if value is None else shown(value)


def _cost(name: str, value: float | None) -> str:
    if not is_number(value):
        return "-"
    if "FLOPs" in name:
        return f"{value:.2e}"
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.1f}"
