"""report.html, table.csv and table.md of an ablation, from its folder alone: the same folder gives the same bytes."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup, escape

from electra_lab.analysis import interaction, power, statistics, verdict
from electra_lab.analysis.bimodality import two_groups
from electra_lab.analysis.convergence import LAST, late_share
from electra_lab.analysis.results import AVERAGE, CellResult, Results, Status, read, shown, within
from electra_lab.analysis.statistics import named, number
from electra_lab.presentation import sweep_figures as figures
from electra_lab.presentation.charts import render
from electra_lab.presentation.data_summary import data_facts
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


def write_report(folder: Path) -> Path:
    """Write the three files, each whole or not at all; returns the page. Raises CheckpointError."""
    results = read(folder)
    write_whole(folder / "table.csv", cells_csv(results))
    write_whole(folder / "table.md", variants_markdown(results))
    write_whole(folder / "report.html", _page(results))
    return folder / "report.html"


@dataclass(frozen=True)
class Row:
    """A variant's row in the table of one metric."""

    variant: str
    mean: statistics.Estimate
    difference: statistics.Difference | None  # None for the baseline itself
    metric: Metric
    lacks: bool  # some of its cells were measured and do not have the metric

    @property
    def mean_text(self) -> str:
        """`0.7123 ± 0.0045`"""
        return number(self.mean.mean) + (f" ± {number(self.mean.half)}" if self.mean.half is not None else "")

    @property
    def difference_text(self) -> str:
        """`+0.0042 [-0.0021, +0.0105]`, with the number of pairs if that is not the row's number of seeds."""
        d = self.difference
        if d is None or d.mean is None:
            return "baseline" if d is None else "-"
        return _interval(d) + (f" over {d.n} pair{'s' * (d.n > 1)}" if d.n != self.mean.n else "")

    @property
    def p(self) -> str:
        return _p(self.difference)

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


def _interval(d: statistics.Difference) -> str:
    interval = f" [{number(d.low, sign=True)}, {number(d.high, sign=True)}]" if d.low is not None else ""
    return number(d.mean, sign=True) + interval


def _p(d: statistics.Difference | None) -> str:
    return statistics.p_text(d.holm).removeprefix("p = ").removeprefix("p ") if d and d.holm is not None else "-"


@dataclass(frozen=True)
class ByReference:
    """Variant x reference, for a metric that is a mean over references."""

    metric: str
    said: list[str]
    parts: dict[str, list[Row]]  # by the metric of each reference, a row per variant
    contrasts: list[list[str]]  # variant, two references, contrast, Holm's p

    @property
    def rows(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Return each variant with its mean, and its difference to the baseline, by each reference."""
        lines = zip(*self.parts.values(), strict=True)
        return [(line[0].variant, [(row.mean_text, row.difference_text) for row in line]) for line in lines]


def by_reference(results: Results) -> list[ByReference]:
    """Return what two references or more say, of each metric that is a mean over them."""
    plan, found = results.plan, list[ByReference]()
    for name, metric in plan.metrics.items():
        parts = {part: results.values(part) for part in metric.parts if part in plan.metrics}
        if said := interaction.sentences(parts, results.claims, plan.baseline, metric.higher_is_better):
            rows = {part: comparison(results, part, plan.metrics[part]) for part in parts}
            contrasts = [
                [label, f"{a} - {b}", _interval(d), _p(d)]
                for (label, a, b), d in results.claims.contrasts(list(parts)).items()
            ]
            found.append(ByReference(name, said, rows, contrasts))
    return found


def by_task(results: Results) -> dict[str, list[Row]]:
    """Return the comparison of the variants on each task, and by the average; empty if there is one task or none."""
    metrics = results.plan.metrics if len(results.plan.tasks) > 1 else {}
    names = [*results.plan.tasks, AVERAGE] if metrics else []
    return {name: comparison(results, name, metrics[name]) for name in names}


def tables(results: Results) -> list[tuple[str, Metric, list[Row]]]:
    """Return the table of each metric that some cell has, the leading one first."""
    found, nothing = [], statistics.Difference(0, None, why="needs no training")
    for name, metric in results.plan.metrics.items():
        if results.has(name) and name not in results.plan.trivial:
            rows = comparison(results, name, metric)
            for title, mean in results.trivial(name).items():
                rows.append(Row(title, statistics.Estimate(len(results.plan.seeds), mean), nothing, metric, False))
            found.append((name, metric, rows))
    return found


def comparison(results: Results, name: str, metric: Metric) -> list[Row]:
    """Return each variant's mean of a metric, and its difference to the baseline."""
    values = results.values(name)
    differences = results.claims.against(name)
    lacking = {cell.plan.variant for cell in results.lacking.get(name, ())}
    return [
        Row(label, statistics.estimate(list(each.values())), differences.get(label), metric, label in lacking)
        for label, each in values.items()
    ]


def cells_csv(results: Results) -> str:
    """Return one row per cell: costs are as planned if it has not begun, tokens and seconds there if it was trained."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    names = [name for name in results.plan.metrics if not (name == AVERAGE and results.plan.tasks)]
    tasks = ["task"] if results.plan.tasks else []
    costs_of = ["steps", "flops", "paper_flops", "tokens", "parameters", "seconds"]
    out.writerow(["variant", *tasks, "seed", "status", *costs_of, *names])
    for cell in results.cells:
        plan, costs = cell.plan, cell.costs
        flops, total = [_whole(each) for each in (costs.flops, costs.paper_flops)], costs.parameters.get("total")
        numbers = [costs.steps, *flops, _whole(cell.tokens), total, cell.seconds]
        task = [plan.task] if tasks else []
        out.writerow([plan.variant, *task, plan.seed, cell.status, *numbers, *map(cell.metrics.get, names)])
    return text.getvalue()


def _whole(number: float | None) -> float | None:
    return int(number) if number is not None and number == int(number) else number


def variants_markdown(results: Results) -> str:
    """Return the verdict, then a table per metric, the leading one first, with a row per variant."""
    plan = results.plan
    parts = [f"# {_markdown(plan.name)}", _markdown(plan.question), " ".join(map(_markdown, _verdict(results)))]
    if found := by_task(results):
        means, gaps = [["variant", *found]], [["difference", *found]]
        for line in zip(*found.values(), strict=True):
            means.append([_markdown(line[0].variant), *(row.mean_text for row in line)])
            gaps.append([_markdown(line[0].variant), *(row.difference_text for row in line)])
        parts += ["## The tasks", _table(means), _table(gaps)]
    for name, metric, rows in tables(results):
        lines = [["variant", "seeds", "mean", "difference", "Holm p", "reading"]]
        for row in rows:
            numbers = [str(row.mean.n), row.mean_text, row.difference_text, row.p]
            lines.append([_markdown(row.variant), *numbers, row.reading])
        parts += [f"## {name}, {metric.direction}", _table(lines)]
    for each in by_reference(results):
        lines = [["variant", *(title for part in each.parts for title in (part, "difference"))]]
        lines += [[label, *(text for pair in pairs for text in pair)] for label, pairs in each.rows]
        contrasts = [["variant", "references", "contrast", "Holm p"], *each.contrasts]
        said = " ".join(map(_markdown, each.said))
        parts += [f"## {each.metric} by reference", said, *(_table(_plain(part)) for part in (lines, contrasts))]
    return "\n\n".join(filter(None, parts)) + "\n"


def _plain(lines: list[list[str]]) -> list[list[str]]:
    return [[_markdown(line[0]), *line[1:]] for line in lines]


def _table(lines: list[list[str]]) -> str:
    """Format a table, whose first line has the titles."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    padded = (
        [line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in (lines[0], rule, *lines[1:])
    )
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def _verdict(results: Results) -> list[str]:
    """Return the conclusions about the leading metric, and their limits."""
    plan, values = results.plan, results.values(results.plan.metric)
    leading, key = plan.metrics[plan.metric], next(iter(plan.keys), "")
    options = plan.baseline, leading.higher_is_better, plan.axis, key, results.claims, not leading.comparable
    said = verdict.sentences(plan.metric, values, *options)
    if not leading.comparable:
        said.append("Each cell is measured on a task of its own, so the best number need not be the best model.")
    said += [sentence for each in by_reference(results) if each.metric == plan.metric for sentence in each.said]
    said += _limits(results)
    return said


def _limits(results: Results) -> Iterator[str]:
    """Yield what limits the verdict: unequal or unfinished learning, unnamed changes, differences too small to find."""
    plan, values = results.plan, results.values(results.plan.metric)
    if groups := two_groups(values):
        cut, torn = groups
        yield (
            f"The cells fall into two groups, below and above {number(cut)}, and the seeds of "
            f"{statistics.listed([named(label) for label in torn])} into both: some seem to have made a step that "
            "others have not. Intervals may be too narrow then. Train longer, or take more seeds."
        )
    if growing := [named(v.label) for v in plan.variants if (late_share(results.of(v.label)) or 0) >= LAST]:
        yield (
            f"{statistics.listed(growing)} made a third or more of {'its' if len(growing) == 1 else 'their'} gain on "
            "validation text in the last third of training: longer training may change the order."
        )
    for variant in plan.variants:
        if variant.beyond:
            both = {key: variant.differs[key] for key in variant.beyond if key in variant.differs}
            words = [f"{key} ({shown(then)} -> {shown(now)})" for key, (then, now) in both.items()]
            yield f"Beyond the change that it names, {named(variant.label)} differs in {statistics.listed(words)}."
    differences = [d for d in results.claims.against(plan.metric).values() if d.n]
    found = power.spread(differences, "by these cells")
    known = [each for each in (plan.expected, found) if each]
    if differences:
        tested = [d.n for d in differences if d.p is not None]
        seeds = min(tested, default=max(d.n for d in differences))
        if said := power.sentence(plan.metric, seeds, len(tested), known):
            yield said
    layers = dict.fromkeys(name for d in differences for name in d.layers)
    compared = {label: d for label, d in results.claims.against(plan.metric).items() if d.error is not None}
    for name in layers:
        if lacking := [named(label) for label, d in compared.items() if name not in d.layers]:
            yield (
                f"The intervals of {statistics.listed(lacking)} do not include other {name}, which are known of fewer "
                "than two seeds: they are narrower than the others."
            )


def _markdown(text: str) -> str:
    for mark in "\\`*<>|":
        text = text.replace(mark, f"\\{mark}")
    return re.sub("^#", r"\\#", " ".join(text.split()))


def _page(results: Results) -> str:
    plan = results.plan
    picture, compute_said = figures.compute(results)
    provenance, begun = _provenance(results), sum(cell.provenance is not None for cell in results.cells)
    return render(
        "ablation.html.j2",
        plan=plan,
        results=results,
        states=[(results.count(s), meaning) for s, meaning in STATES.items() if results.count(s) or s == "done"],
        broken=[cell for cell in results.cells if cell.error or cell.status == "failed"],
        verdict=_verdict(results),
        exploratory=results.has(plan.metric) and statistics.is_exploratory(results.values(plan.metric), plan.baseline),
        pictures=[each for each in (figures.leading(results), figures.differences(results)) if each],
        tables=tables(results),
        by_reference=by_reference(results),
        by_task=by_task(results),
        lacking=_lacking(results),
        nowhere=[name for name in plan.metrics if not results.has(name) and name not in plan.trivial],
        compute=picture,
        compute_said=compute_said,
        within=partial(within, results.folder),
        curves=figures.curves(results),
        keys=figures.keys(plan, "key"),
        more_keys=figures.keys(plan, "again"),
        costs=_costs(results),
        budget=_budget(plan.budget),
        provenance=provenance,
        mixed=[fact for fact, values in provenance if len(values) > 1 or sum(n for _, n in values) < begun],
        cells=_linked(results),
        references=[(id, _link(results.folder, id)) for id in plan.references],
        shown=shown,
        breakable=_breakable,
        named=named,
    )


def _breakable(text: str, after: str = ",") -> Markup:
    """Allow line breaks in labels of variants, between their changes."""
    broken = str(escape(text))
    for mark in after:
        broken = re.sub(rf"{mark}(?=\S)", f"{mark}<wbr>", broken)
    return Markup(broken)


def _lacking(results: Results) -> list[tuple[str, str]]:
    """Return metrics and the measured cells without them, of variants that have some; other variants' rows say so."""
    by_cells: dict[str, list[str]] = {}
    for name, cells in results.lacking.items():
        has = results.values(name)
        if partly := [cell.plan for cell in cells if has[cell.plan.variant]]:
            by_cells.setdefault("; ".join(f"{each.variant}, seed {each.seed}" for each in partly), []).append(name)
    return [(", ".join(names), cells) for cells, names in by_cells.items()]


def _budget(budget: dict[str, float] | None) -> str:
    if not budget:
        return "as long as the base"
    return " and ".join(
        f"{n:,.0f} {unit}" if n < 1e7 else f"{n:.4g} {figures.UNITS.get(unit, unit)}" for unit, n in budget.items()
    )


def _costs(results: Results) -> tuple[int, list[str], list[tuple[str, list[str]]]]:
    """Return the number of columns with parameters, all columns, and a row of means for each variant."""
    counted = {part for cell in results.cells for part in cell.costs.parameters}
    sizes = [part for part in ("generator", "discriminator", "shared", "total") if part in counted]
    columns = [*sizes, "steps", "tokens", "FLOPs", "paper's FLOPs", "seconds", "tokens/s"]
    rows = []
    for variant in results.plan.variants:
        line, costs = [], list(map(_cost, results.of(variant.label)))
        for title in columns:
            found = [value for cost in costs if (value := cost.get(title)) is not None]
            mean = sum(found) / len(found) if found else None
            line.append("-" if mean is None else f"{mean:.2e}" if title.endswith("FLOPs") else f"{mean:,.0f}")
        rows.append((variant.label, line))
    return len(sizes), columns, rows


def _cost(cell: CellResult) -> dict[str, float | None]:
    costs, tokens, seconds = cell.costs, cell.tokens, cell.seconds
    speed = tokens / seconds if tokens and seconds else None
    spent = {"steps": costs.steps, "tokens": tokens, "FLOPs": costs.flops, "paper's FLOPs": costs.paper_flops}
    return {**costs.parameters, **spent, "seconds": seconds, "tokens/s": speed}


def _provenance(results: Results) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return the facts about code, machine and data, each with its values and how many cells have each."""
    seen: dict[str, Counter[str]] = {}
    for cell in results.cells:
        for fact, value in _facts(cell.provenance) if cell.provenance else ():
            seen.setdefault(fact, Counter())[value] += 1
    return [(fact, sorted(values.items(), key=lambda each: (-each[1], each[0]))) for fact, values in seen.items()]


def _facts(provenance: Provenance) -> Iterator[tuple[str, str]]:
    git, environment = provenance.git or {}, provenance.environment
    yield "electra_lab", environment.electra_lab or provenance.electra_lab
    if commit := git.get("commit"):
        yield "commit", f"{commit[:12]}{', with changes that are not committed' if git.get('changed') else ''}"
    for fact, value in environment.model_dump(exclude={"packages", "electra_lab"}, exclude_none=True).items():
        yield fact, str(value)
    if provenance.platform:
        yield "platform", provenance.platform
    yield from ((package, version) for package, version in environment.packages.items() if version is not None)
    for plugin in provenance.plugins:
        yield f"plug-in {Path(plugin.file).name}", plugin.sha256[:12]
    yield "token store", provenance.data.store
    yield from data_facts(provenance.data)


def _linked(results: Results) -> tuple[list[int], list[tuple[str, list[tuple[str, str, str]]]]]:
    """Return the seeds, and for each variant its cells: (text, href or "", status)."""
    seeds = sorted({cell.plan.seed for cell in results.cells} | set(results.plan.seeds))
    cells = {(cell.plan.variant, cell.plan.task, cell.plan.seed): cell for cell in results.cells}
    rows = []
    for variant in results.plan.variants:
        for task in results.plan.tasks or [""]:
            label = f"{variant.label}, {task}" if task else variant.label
            rows.append((label, [_entry(results, cells.get((variant.label, task, seed))) for seed in seeds]))
    return seeds, rows


def _entry(results: Results, cell: CellResult | None) -> tuple[str, str, str]:
    if cell is None:
        return "-", "", "not planned"
    value, status = cell.metrics.get(cell.plan.task or results.plan.metric), cell.status
    text = number(value) if value is not None else status
    return text, _link(results.folder, cell.plan.id), "" if status in ("done", text) else status


def _link(folder: Path, id: str) -> str:
    """Return the relative link to the run's own page; empty if there is none yet."""
    return f"cells/{quote(id)}/report.html" if (folder / "cells" / id / "report.html").is_file() else ""
