"""report.html, table.csv and table.md of an ablation, from its folder alone: the same folder gives the same bytes."""

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from electra_lab.analysis.comparisons import is_exploratory
from electra_lab.analysis.results import AVERAGE, CONSTANT, CellResult, Results, Status, read
from electra_lab.presentation import sweep_figures as figures
from electra_lab.presentation.pages import Unfinished, render
from electra_lab.presentation.search_section import section
from electra_lab.presentation.text import Table, counted, data_facts, escaped, named, number, shown, within
from electra_lab.presentation.verdict import COLUMNS, MEANS, PROSE, caution, comparison, note, tables, verdict
from electra_lab.storage.files import write_whole
from electra_lab.storage.provenance import Provenance

STATES: dict[Status, str] = {
    "done": "done",
    "pruned": "pruned by the search",
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
    main, *others = map(escaped, verdict(results))
    parts = [f"# {escaped(plan.name)}", escaped(plan.question), " ".join([f"**{main}**", *others])]
    parts.append(caution(plan.search))
    if task_tables := by_task(results):
        parts += ["## The tasks", *(table.markdown() for table in task_tables)]
    parts.append(f"{MEANS} The difference is to the baseline {escaped(plan.baseline)}, with a 95% interval.")
    for _, _, table in tables(results):
        parts += [f"## {table.title}", table.markdown()]
    return "\n\n".join(filter(None, parts)) + "\n"


def _page(results: Results, unfinished: Unfinished | None) -> str:
    plan = results.plan
    exploratory = results.has(plan.metric) and is_exploratory(results.values(plan.metric), plan.baseline)
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
        verdict=verdict(results),
        exploratory=exploratory,
        note=note(plan.metric, named(plan.baseline), exploratory=exploratory),
        search=section(results),
        differs=_differs(results),
        pictures=[*filter(None, (figures.leading(results), figures.differences(results)))],
        head=Table("All metrics", [*COLUMNS], [], PROSE),
        tables=tables(results),
        by_task=by_task(results),
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
            named_key = key if key not in variant.beyond else f"{key} (not named)"
            rows.append([label, named_key, *(within(results.folder, shown(value)) for value in values)])
        if not variant.differs and label != results.plan.baseline:
            rows.append([label, "nothing differs", "", ""])
    columns = ["variant", "key", "baseline", "differs"]
    return Table("What differs from the baseline", columns, rows, columns[1:])


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
    parts = set[str]().union(*(cell.costs.parameters for cell in results.cells))
    columns = [*filter(parts.__contains__, SIZES), "steps", "tokens", "FLOPs", "paper's FLOPs", "seconds", "tokens/s"]
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
    counts: dict[str, Counter[str]] = {}
    for cell in results.cells:
        for fact, value in conditions(cell.provenance) if cell.provenance else ():
            counts.setdefault(fact, Counter())[value] += 1
    return [(fact, sorted(values.items(), key=lambda pair: (-pair[1], pair[0]))) for fact, values in counts.items()]


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
