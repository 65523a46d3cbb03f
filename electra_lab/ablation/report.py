"""report.html, table.csv and table.md of an ablation, from its folder alone: the same folder gives the same bytes."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

from electra_lab.ablation import figures
from electra_lab.ablation.results import Cell, PlannedQuantity, Results, Status, read, within
from electra_lab.ablation.statistics import (
    Difference,
    Estimate,
    against,
    estimate,
    is_exploratory,
    named,
    number,
    p_text,
    sentences,
)
from electra_lab.charts import render
from electra_lab.runs.directory import write_whole

STATES: dict[Status, str] = {
    "done": "done",
    "unmeasured": "trained, but not measured in full",
    "unfinished": "begun, but not trained to the end",
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
    """A variant's share in the table of one quantity."""

    variant: str
    mean: Estimate
    difference: Difference | None  # None for the baseline itself
    quantity: PlannedQuantity
    lacks: bool  # some of its cells were measured and have none

    @property
    def mean_text(self) -> str:
        """`0.7123 ± 0.0045`"""
        return number(self.mean.mean) + (f" ± {number(self.mean.half)}" if self.mean.half is not None else "")

    @property
    def difference_text(self) -> str:
        """`+0.0042 [-0.0021, +0.0105]`, with the number of pairs where that is not the row's number of seeds."""
        d = self.difference
        if d is None or d.mean is None:
            return "baseline" if d is None else "-"
        interval = f" [{number(d.low, sign=True)}, {number(d.high, sign=True)}]" if d.low is not None else ""
        pairs = f" over {d.n} pair{'s' * (d.n > 1)}" if d.n != self.mean.n else ""
        return number(d.mean, sign=True) + interval + pairs

    @property
    def p(self) -> str:
        d = self.difference
        return p_text(d.holm).removeprefix("p = ").removeprefix("p ") if d and d.holm is not None else "-"

    @property
    def reading(self) -> str:
        """What may be said of the difference."""
        if self.mean.mean is None:
            return "has none" if self.lacks else self.mean.why
        if self.difference is None or not self.difference.distinguishable:
            return (self.difference.why if self.difference else "") or self.mean.why
        higher = (self.difference.mean or 0) > 0
        if self.quantity.own_task:
            return "higher" if higher else "lower"
        return "better" if higher == self.quantity.higher_is_better else "worse"


def comparison(results: Results, name: str, quantity: PlannedQuantity) -> list[Row]:
    """Each variant's mean of a quantity, and its difference to the baseline."""
    values = results.values(name)
    differences = against(values, results.plan.baseline)
    lacking = {cell.plan.variant for cell in results.lacking.get(name, ())}
    return [
        Row(label, estimate(list(each.values())), differences.get(label), quantity, label in lacking)
        for label, each in values.items()
    ]


def cells_csv(results: Results) -> str:
    """A row a cell: steps, FLOPs and parameters, of one that has not begun as planned; tokens and seconds of one that
    was trained; its quantities."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    names = list(results.plan.quantities)
    out.writerow(["variant", "seed", "status", "steps", "flops", "tokens", "parameters", "seconds", *names])
    for cell in results.cells:
        plan, total = cell.plan, cell.parameters.get("total")
        costs = [cell.steps, _whole(cell.flops), _whole(cell.training("tokens")), total, cell.seconds]
        out.writerow([plan.variant, plan.seed, cell.status, *costs, *map(cell.values.get, names)])
    return text.getvalue()


def _whole(number: float | None) -> float | None:
    return int(number) if number is not None and number == int(number) else number


def variants_markdown(results: Results) -> str:
    """What was found, then a table a quantity, the leading one first: a row a variant with mean ± half of its 95%
    interval, the paired difference with its interval, Holm's p."""
    plan = results.plan
    names = sorted(plan.quantities, key=lambda name: name != plan.leading)
    parts = [
        f"# {_markdown(plan.name)}",
        _markdown(plan.question or ""),
        " ".join(_markdown(said) for said in _found(results)),
    ]
    for name in names:
        quantity, rows = plan.quantities[name], comparison(results, name, plan.quantities[name])
        if not any(results.values(name).values()):
            continue
        lines = [["variant", "seeds", "mean", "difference", "Holm p", "reading"], [], *(
            [_markdown(row.variant), str(len(results.values(name)[row.variant])), row.mean_text, row.difference_text,
             row.p, row.reading] for row in rows
        )]  # fmt: skip
        parts += [f"## {name}, {quantity.direction}", _table(lines)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(lines: list[list[str]]) -> str:
    """The first line has the titles; the second is left to the rules."""
    widths = [max(len(line[i]) for line in lines if line) for i in range(len(lines[0]))]
    lines[1] = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    padded = ([text.ljust(w) if i == 0 else text.rjust(w) for i, (text, w) in enumerate(zip(line, widths, strict=True))]
              for line in lines)  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def _found(results: Results) -> list[str]:
    """What the data show of the leading quantity, and what they do not."""
    plan = results.plan
    leading = plan.quantities[plan.leading]
    said = sentences(
        plan.leading, results.values(plan.leading), plan.baseline, leading.higher_is_better, plan.axis,
        plan.keys[0] if plan.keys else "",
    )  # fmt: skip
    if leading.own_task:
        said.append("Each cell is measured on a task of its own here, so the best number need not be the best network.")
    return said


def _markdown(text: str) -> str:
    for mark in "\\`*<>|":
        text = text.replace(mark, f"\\{mark}")
    return re.sub("^#", r"\\#", " ".join(text.split()))


def _page(results: Results) -> str:
    plan = results.plan
    values = results.values(plan.leading)
    picture, compute_said = figures.compute(results)
    provenance, begun = _provenance(results), sum(cell.provenance is not None for cell in results.cells)
    return render(
        "electra_lab.ablation",
        plan=plan,
        results=results,
        states=[(results.count(s), meaning) for s, meaning in STATES.items() if results.count(s) or s == "done"],
        failed=[cell for cell in results.cells if cell.status == "failed"],
        verdict=_found(results),
        exploratory=any(values.values()) and is_exploratory(values, plan.baseline),
        pictures=[each for each in (figures.leading(results), figures.differences(results)) if each],
        tables=[(name, q, comparison(results, name, q)) for name, q in plan.quantities.items()],
        lacking=_lacking(results),
        nowhere=[name for name in plan.quantities if not any(results.values(name).values())],
        compute=picture,
        compute_said=compute_said,
        curves=figures.curves(results),
        keys=figures.keys(plan, "key"),
        more_keys=figures.keys(plan, "again"),
        costs=_costs(results),
        budget=_budget(plan.budget),
        differing=list(_differing(results)),
        provenance=provenance,
        mixed=[fact for fact, values in provenance if len(values) > 1 or sum(n for _, n in values) < begun],
        cells=_linked(results),
        references=[(id, _link(results.folder, id)) for id in plan.references],
        json=_json,
        breakable=_breakable,
        named=named,
    )


def _breakable(text: str, after: str = ",") -> Markup:
    """Text with variants' labels, which may be broken where one of their changes ends."""
    broken = str(escape(text))
    for mark in after:
        broken = re.sub(rf"{mark}(?=\S)", f"{mark}<wbr>", broken)
    return Markup(broken)


def _lacking(results: Results) -> list[tuple[str, str]]:
    """Quantities, and the cells that were measured and have none, of variants that have some: of others their row says
    so."""
    by_cells: dict[str, list[str]] = {}
    for name, cells in results.lacking.items():
        has = results.values(name)
        partly = [cell.plan for cell in cells if has[cell.plan.variant]]
        if partly:
            by_cells.setdefault("; ".join(f"{each.variant}, seed {each.seed}" for each in partly), []).append(name)
    return [(", ".join(names), cells) for cells, names in by_cells.items()]


def _budget(budget: dict[str, float] | None) -> str:
    if not budget:
        return "as long as the base says"
    return " and ".join(
        f"{n:,.0f} {what}" if n < 1e7 else f"{n:.4g} {'FLOPs' if what == 'flops' else what}"
        for what, n in budget.items()
    )


def _costs(results: Results) -> tuple[int, list[str], list[tuple[str, list[str]]]]:
    """What a cell of each variant costs: the plan's numbers, and means over the cells that were trained.

    The first so many columns are parameters.
    """
    sizes = [
        part
        for part in ("generator", "discriminator", "shared", "total")
        if any(part in cell.parameters for cell in results.cells)
    ]
    columns: dict[str, Callable[[Cell], float | None]] = {
        **{part: lambda cell, part=part: cell.parameters.get(part) for part in sizes},  # type: ignore[misc]
        "steps": lambda cell: cell.steps,
        "tokens": lambda cell: cell.training("tokens"),
        "FLOPs": lambda cell: cell.flops,
        "seconds": lambda cell: cell.seconds,
        "tokens/s": _speed,
    }
    rows = []
    for variant in results.plan.variants:
        line = []
        for what, of in columns.items():
            found = [value for value in map(of, results.of(variant.label)) if value is not None]
            mean = sum(found) / len(found) if found else None
            line.append("-" if mean is None else f"{mean:.2e}" if what == "FLOPs" else f"{mean:,.0f}")
        rows.append((variant.label, line))
    return len(sizes), list(columns), rows


def _speed(cell: Cell) -> float | None:
    tokens, seconds = cell.training("tokens"), cell.seconds
    return tokens / seconds if tokens and seconds else None


def _differing(results: Results) -> Iterator[tuple[str, list[tuple[str, str, str]] | None, str]]:
    """(variant, [(key, the baseline's value, its value)] or None, why not), from what the cells really ran."""
    plan = results.plan
    ignored = {"seed", "name"} | ({"train.steps", "train.tokens", "train.flops"} if plan.budget else set())
    configs = {
        variant.label: next((cell.config for cell in results.of(variant.label) if cell.config), None)
        for variant in plan.variants
    }
    base = configs[plan.baseline]
    for variant in plan.variants:
        own = configs[variant.label]
        if variant.label == plan.baseline:
            continue
        if own is None or base is None:
            yield variant.label, None, "no cell of it has begun" if own is None else "no cell of the baseline has begun"
            continue
        ours, theirs = _flat(own), _flat(base)
        shown = [{key: within(results.folder, _json(value)) for key, value in side.items()} for side in (theirs, ours)]
        changed = [
            (key, shown[0].get(key, "-"), shown[1].get(key, "-"))
            for key in {**theirs, **ours}
            if key not in ignored and theirs.get(key, ...) != ours.get(key, ...)
        ]
        yield variant.label, changed, ""


def _flat(values: Any, above: str = "") -> dict[str, Any]:
    """`{a: {b: 1}}` as `{a.b: 1}`; an empty mapping is a value."""
    if not isinstance(values, dict) or not values:
        return {above: values}
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{above}.{key}" if above else str(key))
    return found


def _json(value: Any) -> str:
    """A value as the YAML would write it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _provenance(results: Results) -> list[tuple[str, list[tuple[str, int]]]]:
    """What the cells ran on: each fact with its values, and how many cells have each."""
    seen: dict[str, dict[str, int]] = {}
    for cell in results.cells:
        for fact, value in _facts(cell.provenance or {}):
            values = seen.setdefault(fact, {})
            values[value] = values.get(value, 0) + 1
    return [(fact, sorted(values.items(), key=lambda each: (-each[1], each[0]))) for fact, values in seen.items()]


def _facts(provenance: dict[str, Any]) -> Iterator[tuple[str, str]]:
    git, environment, data = (provenance.get(key) or {} for key in ("git", "environment", "data"))
    if version := provenance.get("electra_lab"):
        yield "electra_lab", str(version)
    if commit := git.get("commit"):
        yield "commit", f"{commit[:12]}{', with changes that are not committed' if git.get('changed') else ''}"
    for fact, value in environment.items():
        if fact != "packages" and value is not None:
            yield fact, str(value)
    if machine := provenance.get("platform"):
        yield "platform", str(machine)
    for package, version in (environment.get("packages") or {}).items():
        if version is not None:
            yield package, str(version)
    for plugin in provenance.get("plugins") or []:
        yield f"plug-in {Path(plugin['file']).name}", plugin["sha256"][:12]
    if store := data.get("store"):
        yield "token store", str(store)


def _linked(results: Results) -> tuple[list[int], list[tuple[str, list[tuple[str, str, str]]]]]:
    """Seeds, and for each variant its cells: (text, href or "", what became of it)."""
    seeds = sorted({cell.plan.seed for cell in results.cells} | set(results.plan.seeds))
    rows = []
    for variant in results.plan.variants:
        of = {cell.plan.seed: cell for cell in results.of(variant.label)}
        rows.append((variant.label, [_entry(results, of.get(seed)) for seed in seeds]))
    return seeds, rows


def _entry(results: Results, cell: Cell | None) -> tuple[str, str, str]:
    if cell is None:
        return "-", "", "not planned"
    value = cell.values.get(results.plan.leading)
    text = number(value) if value is not None else cell.status
    return text, _link(results.folder, cell.plan.id), "" if cell.status in ("done", text) else cell.status


def _link(folder: Path, id: str) -> str:
    """Where the run's own page is, seen from the ablation's; empty if there is none yet."""
    return f"cells/{quote(id)}/report.html" if (folder / "cells" / id / "report.html").is_file() else ""
