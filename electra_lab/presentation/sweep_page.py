"""report.html, table.csv and table.md of an ablation, from its folder alone: the same folder gives the same bytes."""

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from electra_lab.analysis.comparisons import is_exploratory
from electra_lab.analysis.intervals import MANY_DOCUMENTS, Difference, Estimate, estimate
from electra_lab.analysis.results import AVERAGE, CONSTANT, CellResult, Results, Status, read
from electra_lab.presentation import sweep_figures as figures
from electra_lab.presentation import verdict
from electra_lab.presentation.limits import limits
from electra_lab.presentation.pages import Unfinished, render
from electra_lab.presentation.tables import Table, escaped
from electra_lab.presentation.text import counted, data_facts, interval, listed, named, number, p_text, shown, within
from electra_lab.storage.files import write_whole
from electra_lab.storage.provenance import Provenance
from registry import Metric

STATES: dict[Status, str] = {
    "done": "done",
    "unmeasured": "trained, but not fully measured",
    "unfinished": "begun, but not fully trained",
    "failed": "failed",
    "missing": "not begun",
}
SIZES = ["generator", "discriminator", "shared", "total"]


def write_report(folder: Path, unfinished: Unfinished | None = None) -> Path:
    """Write the three files, each atomically; returns the page. Raises CheckpointError.

    unfinished  the state of an ablation that is not at its end
    """
    results = read(folder)
    write_whole(folder / "table.csv", cells_csv(results))
    write_whole(folder / "table.md", variants_markdown(results))
    write_whole(folder / "report.html", _page(results, unfinished))
    return folder / "report.html"


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
        return _with_interval(d) + (f" over {counted(d.n, 'pair')}" if d.n != self.mean.n else "")

    @property
    def reading(self) -> str:
        """The conclusion that the difference allows."""
        d = self.difference
        if self.mean.mean is None:
            return "not available" if self.lacks else self.mean.why
        if d is None or not d.distinguishable:
            return (d.why if d else "") or self.mean.why
        higher = d.found(higher=True)
        if not self.metric.comparable:
            return "higher" if higher else "lower"
        return "better" if higher == self.metric.higher_is_better else "worse"


def _with_interval(d: Difference) -> str:
    return f"{number(d.mean, sign=True)} {interval(d)}".rstrip()


def _p(d: Difference | None) -> str:
    return p_text(d.holm).removeprefix("p = ").removeprefix("p ") if d and d.holm is not None else "-"


# The columns of the table of a metric, with the text of a row in each.
MEANS = "Mean ± half of its 95% t interval over seeds; where that meets a bound of the metric, its ends in brackets."
COLUMNS: dict[str, Callable[[Row], str]] = {
    "variant": lambda row: row.variant,
    "seeds": lambda row: str(row.mean.n),
    "mean": lambda row: row.mean_text,
    "difference": lambda row: row.difference_text,
    "Holm p": lambda row: _p(row.difference),
    "reading": lambda row: row.reading,
}
PROSE = ["reading"]  # columns of words, not of numbers


def by_task(results: Results) -> list[Table]:
    """Return the means of the variants on each task, and their differences; none if there is one task or none."""
    plan = results.plan
    if len(plan.tasks) < 2:
        return []
    names = [*plan.tasks, AVERAGE]
    columns = [comparison(results, name, plan.metrics[name]) for name in names]
    means, differences = list[list[str]](), list[list[str]]()
    for rows in zip(*columns, strict=True):
        means.append([rows[0].variant, *(row.mean_text for row in rows)])
        differences.append([rows[0].variant, *(row.difference_text for row in rows)])
    return [Table("The tasks", ["variant", *names], means), Table("Differences", ["variant", *names], differences)]


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
    lacking = {cell.plan.variant for cell in results.lacking.get(name, ())}
    rows = []
    for label, seeds in results.values(name).items():
        mean = estimate([*seeds.values()], metric.bounds)
        difference = None if label == results.plan.baseline else differences.get(label, Difference(0, None))
        rows.append(Row(label, mean, difference, metric, label in lacking))
    return rows


def cells_csv(results: Results) -> str:
    """Return one row per cell: planned costs for a cell that has not begun, tokens and seconds for a trained one."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    numbers = ["steps", "flops", "paper_flops", "tokens", "parameters", "seconds"]
    tasks = ["task"] if results.plan.tasks else []
    names = [name for name in results.plan.metrics if not (tasks and name in (AVERAGE, CONSTANT))]
    out.writerow(["variant", *tasks, "seed", "status", *numbers, *names])
    for cell in results.cells:
        costs, total = cell.costs, cell.costs.parameters.get("total")
        flops, paper_flops, tokens = map(_whole, (costs.flops, costs.paper_flops, cell.tokens))
        task = [cell.plan.task] if tasks else []
        row = [cell.plan.variant, *task, cell.plan.seed, cell.status, costs.steps, flops, paper_flops, tokens, total]
        out.writerow([*row, cell.seconds, *map(cell.metrics.get, names)])
    return text.getvalue()


def _whole(number: float | None) -> float | None:
    return int(number) if number is not None and number == int(number) else number


def variants_markdown(results: Results) -> str:
    """Return the verdict, then a table per metric, the leading one first, with a row per variant."""
    plan = results.plan
    judged = _verdict(results)
    sentences = {sentence: escaped(sentence) for sentence in judged.sentences}
    conclusions = " ".join((sentences | {judged.main: f"**{escaped(judged.main)}**"}).values())
    parts = [f"# {escaped(plan.name)}", escaped(plan.question), conclusions]
    if task_tables := by_task(results):
        parts += ["## The tasks", *(table.markdown() for table in task_tables)]
    parts.append(f"{MEANS} The difference is to the baseline {escaped(plan.baseline)}, with a 95% interval.")
    for _, _, table in tables(results):
        parts += [f"## {table.title}", table.markdown()]
    return "\n\n".join(filter(None, parts)) + "\n"


def _verdict(results: Results) -> verdict.Verdict:
    """Return the conclusions about the leading metric, and their limits."""
    plan, leading = results.plan, results.plan.metrics[results.plan.metric]
    judged = verdict.judge(
        plan.metric, results.values(plan.metric), plan.baseline, leading.higher_is_better, plan.axis,
        key=next(iter(plan.keys), ""), compared=results.comparisons, comparable=leading.comparable,
    )  # fmt: skip
    conclusions = [*judged.sentences]
    if not leading.comparable:
        conclusions.append("Each cell is measured on its own task, so the best number may not mean the best model.")
    if plan.gaps and plan.metric == AVERAGE and not results.has(AVERAGE):
        conclusions.append(f"There is no average without {listed([*plan.gaps])}, whose data is not here.")
    return verdict.Verdict([*conclusions, *limits(results)], judged.main)


def _page(results: Results, unfinished: Unfinished | None) -> str:
    plan = results.plan
    chart, compute = figures.compute(results)
    provenance, begun = _provenance(results), sum(cell.provenance is not None for cell in results.cells)
    numbers = {state: results.count(state) for state in STATES}
    return render(
        "sweep.html.j2",
        title=plan.name,
        unfinished=unfinished,
        plan=plan,
        results=results,
        states=[(numbers[state], meaning) for state, meaning in STATES.items() if numbers[state] or state == "done"],
        broken=[cell for cell in results.cells if cell.error or cell.status == "failed"],
        verdict=_verdict(results),
        means=MEANS,
        many_documents=MANY_DOCUMENTS,
        exploratory=results.has(plan.metric) and is_exploratory(results.values(plan.metric), plan.baseline),
        differs=_differs(results),
        pictures=[*filter(None, (figures.leading(results), figures.differences(results)))],
        head=Table("All metrics", [*COLUMNS], [], PROSE),
        tables=tables(results),
        by_task=by_task(results),
        lacking=_lacking(results),
        nowhere=[name for name in plan.metrics if not results.has(name) and name not in plan.trivial],
        compute=[chart] if chart else [],
        compute_said=compute,
        within=partial(within, results.folder),
        curves=figures.curves(results),
        keys=figures.keys(variant.label for variant in plan.variants),
        costs=_costs(results),
        sizes=SIZES,
        budget=_budget(plan.budget),
        provenance=[(fact, _spread(values)) for fact, values in provenance],
        mixed=[fact for fact, values in provenance if len(values) > 1 or values[0][1] < begun],
        cells=_cells(results),
        references=[(id, _link(results.folder, id)) for id in plan.references],
        shown=shown,
        named=named,
    )


def _differs(results: Results) -> Table:
    """Return the keys of the complete configs that differ from the baseline's."""
    rows = []
    for variant in results.plan.variants:
        label = variant.label
        for key, values in variant.differs.items():
            rows.append([label, key, *(within(results.folder, shown(value)) for value in values)])
        if not variant.differs and label != results.plan.baseline:
            rows.append([label, "nothing differs", "", ""])
    columns = ["variant", "key", "baseline", "differs"]
    return Table("What differs from the baseline", columns, rows, columns[1:])


def _lacking(results: Results) -> list[tuple[str, str]]:
    """Return metrics and the measured cells without them, of variants that have some; other variants' rows say so."""
    by_cells: dict[str, list[str]] = {}  # the metrics that the same cells lack
    for name, cells in results.lacking.items():
        values = results.values(name)
        if partly := [f"{cell.plan.variant}, seed {cell.plan.seed}" for cell in cells if values[cell.plan.variant]]:
            by_cells.setdefault("; ".join(partly), []).append(name)
    return [(", ".join(names), cells) for cells, names in by_cells.items()]


def _spread(values: Sequence[tuple[str, int]]) -> str:
    """`1 (7 cells); 8 (1 cell)`; the value alone if there is one."""
    shown = [f"{value} ({counted(cells, 'cell')})" for value, cells in values]
    return "; ".join(shown) if len(shown) > 1 else values[0][0]


def _budget(budget: dict[str, float] | None) -> str:
    parts = []
    for unit, n in (budget or {}).items():
        whole = f"{n:,.0f}" if n >= 10 else f"{n:g}"  # 0.3 epochs
        parts.append(f"{whole} {unit}" if n < 1e7 else f"{n:.4g} {figures.UNITS.get(unit, unit)}")
    return " and ".join(parts) or "as long as the base"


def _costs(results: Results) -> Table:
    """Return the means of each variant's costs."""
    known = set[str]().union(*(cell.costs.parameters for cell in results.cells))
    columns = [*filter(known.__contains__, SIZES), "steps", "tokens", "FLOPs", "paper's FLOPs", "seconds", "tokens/s"]
    rows = []
    for variant in results.plan.variants:
        costs = [_cost(cell) for cell in results.of(variant.label)]
        line = [variant.label]
        for title in columns:
            values = [cost.get(title) for cost in costs]
            numbers = [value for value in values if value is not None]
            if not numbers:
                line.append("-")
                continue
            mean = sum(numbers) / len(numbers)
            line.append(f"{mean:.2e}" if title.endswith("FLOPs") else f"{mean:,.0f}")
        rows.append(line)
    return Table("Cost of a cell", ["variant", *columns], rows)


def _cost(cell: CellResult) -> dict[str, float | None]:
    costs, tokens, seconds = cell.costs, cell.tokens, cell.seconds
    speed = tokens / seconds if tokens and seconds else None
    spent = {"steps": costs.steps, "tokens": tokens, "FLOPs": costs.flops, "paper's FLOPs": costs.paper_flops}
    return {**costs.parameters, **spent, "seconds": seconds, "tokens/s": speed}


def _provenance(results: Results) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return the facts about code, machine and data, each with its values and the number of cells with each."""
    seen: dict[str, Counter[str]] = {}
    for cell in results.cells:
        for fact, value in conditions(cell.provenance) if cell.provenance else ():
            seen.setdefault(fact, Counter())[value] += 1
    return [(fact, sorted(values.items(), key=lambda pair: (-pair[1], pair[0]))) for fact, values in seen.items()]


def conditions(provenance: Provenance) -> Iterator[tuple[str, str]]:
    """Yield the facts about code, machine and data of a run, each with a title."""
    git, environment = provenance.git or {}, provenance.environment
    yield "electra_lab", environment.electra_lab or provenance.electra_lab
    if git.get("commit"):
        changes = ", with changes that are not committed" if git.get("changed") else ""
        yield "commit", f"{git['commit'][:12]}{changes}"
    facts = environment.model_dump(exclude={"packages", "reasons", "electra_lab"}, exclude_none=True)
    yield from ((fact, str(value)) for fact, value in facts.items())
    if provenance.platform:
        yield "platform", provenance.platform
    yield from ((package, version) for package, version in environment.packages.items() if version is not None)
    for plugin in provenance.plugins:
        yield f"plug-in {Path(plugin.file).name}", plugin.sha256[:12]
    yield "token store", provenance.data.store
    yield from data_facts(provenance.data)


def _cells(results: Results) -> Table:
    """Return the leading metric of each cell, or its status, with a link to its page."""
    seeds = sorted({cell.plan.seed for cell in results.cells} | set(results.plan.seeds))
    cells = {(cell.plan.variant, cell.plan.task, cell.plan.seed): cell for cell in results.cells}
    rows = []
    for variant in results.plan.variants:
        for task in results.plan.tasks or [""]:
            name = f"{variant.label}, {task}" if task else variant.label
            rows.append([name, *(_entry(results, cells.get((variant.label, task, seed))) for seed in seeds)])
    return Table("The cells", ["variant", *(f"seed\N{NO-BREAK SPACE}{seed}" for seed in seeds)], rows)


def _entry(results: Results, cell: CellResult | None) -> Markup:
    if cell is None:
        return Markup('- <span class="soft">not planned</span>')
    value, status = cell.metrics.get(cell.plan.task or results.plan.metric), cell.status
    text = status if value is None else number(value)
    link = _link(results.folder, cell.plan.id)
    entry = Markup('<a href="{}">{}</a>').format(link, text) if link else Markup("{}").format(text)
    return entry if status in ("done", text) else entry + Markup(' <span class="soft">{}</span>').format(status)


def _link(folder: Path, id: str) -> str:
    """Return the relative link to the page of the run; empty if there is none yet."""
    return f"cells/{quote(id)}/report.html" if (folder / "cells" / id / "report.html").is_file() else ""
