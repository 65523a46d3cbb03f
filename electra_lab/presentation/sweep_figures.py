"""The charts of an ablation's page. A variant has one colour and one marker in all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from electra_lab.analysis.intervals import Estimate, Values, estimate
from electra_lab.analysis.records import curve, titled
from electra_lab.analysis.results import CellResult, Results
from electra_lab.presentation.figures import HEIGHT, WIDTH, also_printed, in_print, legend, wrapped
from electra_lab.presentation.pages import SOFT, Chart, drawing, finish, look, overlay, svg
from electra_lab.presentation.run_page import heading
from electra_lab.presentation.text import named
from electra_lab.storage.plan import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SPREAD = 20  # an axis is logarithmic if its largest number is this many times its smallest
LINES = [("dashed", "--"), ("dotted", ":"), ("dash-dotted", "-.")]  # of baselines without training
UNITS = {"flops": "FLOPs", "paper_flops": "FLOPs as the ELECTRA paper counts"}
SAME_COMPUTE = 1.02  # FLOPs that differ by less are equal: a budget ends at a whole step


def keys(labels: Iterable[str]) -> dict[str, str]:
    """Return each variant's colour and marker, shown next to its name."""
    drawn = {}
    for i, label in enumerate(labels):
        with drawing(0.4, 0.18) as figure:
            figure.set_layout_engine("none")
            axes = figure.add_axes((0, 0, 1, 1))
            axes.axis("off")
            axes.plot([0, 1, 2], [0, 0, 0], linewidth=1.6, markevery=[1], markersize=6, **look(i))
            drawn[label] = svg(figure, f"key{i}")
    return drawn


def _looks(plan: Plan) -> dict[str, dict[str, Any]]:
    return {variant.label: look(i) for i, variant in enumerate(plan.variants)}


@also_printed
def leading(results: Results) -> Chart | None:
    """Draw the leading metric of each variant: mean, interval, and each seed's run."""
    plan, values = results.plan, results.values(results.plan.metric)
    if not any(values.values()):
        return None
    caption = f"{plan.metric} of each variant ({plan.metrics[plan.metric].direction})"
    note = "Filled: the mean with its 95% interval. Hollow: the single seeds, whose effect all variants share."
    trivial = results.trivial(plan.metric)
    if trivial:
        lines = [f"{name} ({style})" for name, (style, _) in zip(trivial, cycle(LINES))]
        note += f" Without training: {', '.join(lines)}."
    if not plan.axis:
        return Chart(caption, _rows(plan, values, caption, trivial.values()), note)
    # One key with numbers is the horizontal axis.
    looks, bounds = _looks(plan), plan.metrics[plan.metric].bounds
    place = {label: x for label, x in plan.axis.items() if values[label]}
    with drawing() as figure:
        axes = figure.subplots()
        if _is_wide(plan.axis.values()):
            axes.set_xscale("log")
        line = sorted(place, key=place.__getitem__)
        means = [float(np.mean([*values[label].values()])) for label in line]
        axes.plot([place[label] for label in line], means, color=SOFT, linewidth=1, alpha=0.6, zorder=1)
        for label in line:
            scores = [*values[label].values()]
            _mark(axes, place[label], scores, looks[label], estimate(scores, bounds))
        for height, (_, style) in zip(trivial.values(), cycle(LINES)):
            axes.axhline(height, color=SOFT, linewidth=1, linestyle=style)
        finish(axes, plan.keys[0], plan.metric, large=True)
        return Chart(caption, svg(figure, "leading", caption), note)


@also_printed
def differences(results: Results) -> Chart | None:
    """Draw the difference of each variant to the baseline in the leading metric, seed by seed."""
    plan, values = results.plan, results.values(results.plan.metric)
    base = values[plan.baseline]
    paired = dict[str, dict[int, float]]()
    for label, seeds in values.items():
        if label != plan.baseline:
            paired[label] = {seed: value - base[seed] for seed, value in seeds.items() if seed in base}
    if not any(paired.values()):
        return None
    caption = f"{plan.metric}: difference to {named(plan.baseline)}"
    note = "Filled: the mean difference with its 95% interval. Hollow: the single seeds. The dashed line is zero."
    return Chart(caption, _rows(plan, paired, caption, [0.0], results.comparisons.against(plan.metric)), note)


def _rows(
    plan: Plan, values: Values, caption: str, lines: Iterable[float], means: Mapping[str, Estimate] | None = None
) -> str:
    """Draw one row per variant, with names in place of numbers.

    lines  positions of vertical lines, which have the styles of LINES
    means  estimates of differences to the baseline; by default the means of the values
    """
    # A key that all labels begin with is the title of the axis.
    key = f"{plan.keys[0]}=" if len(plan.keys) == 1 else ""
    key = key if all(label.startswith(key) for label in values) else ""
    names, looks = [wrapped(label.removeprefix(key)) for label in values], _looks(plan)
    row_height = max(0.45, *(0.2 * len(name.splitlines()) for name in names))  # inches
    with drawing(WIDTH, max(HEIGHT, 0.75 + row_height * len(names))) as figure:
        axes = figure.subplots()
        for line, (_, style) in zip(lines, cycle(LINES)):
            axes.axvline(line, color=SOFT, linewidth=1, linestyle=style)
        for row, (label, seeds) in enumerate(values.items()):
            mean = (means or {}).get(label) or estimate([*seeds.values()], plan.metrics[plan.metric].bounds)
            _mark(axes, -row, [*seeds.values()], looks[label], mean, across=True)
        axes.set_yticks([-row for row in range(len(names))], names, linespacing=1.0)
        axes.set_ylim(-len(names) + 0.4, 0.6)
        axes.tick_params(axis="y", length=0)
        axes.locator_params(axis="x", nbins=5)
        finish(axes, plan.metric if means is None else f"difference in {plan.metric}", plan.keys[0] if key else "")
        return svg(figure, "leading" if means is None else "differences", caption)


def _mark(
    axes: Axes, at: float, values: Sequence[float], style: dict[str, Any], mean: Estimate, across: bool = False
) -> None:
    """Draw a mean with its interval, and its values: on a vertical line, or `across` on a horizontal one."""
    colour, marker = style["color"], style["marker"]
    if mean.mean is None:
        return
    xs, ys = (values, [at] * len(values)) if across else ([at] * len(values), values)
    x, y = (mean.mean, at) if across else (at, mean.mean)
    axes.scatter(xs, ys, facecolors="none", edgecolors=colour, marker=marker, s=22, linewidths=0.9, alpha=0.8, zorder=3)
    axes.scatter(x, y, color=colour, marker=marker, s=46, zorder=4)
    if mean.low is not None and mean.high is not None:
        bar = {"xerr" if across else "yerr": [[mean.mean - mean.low], [mean.high - mean.mean]]}
        axes.errorbar([x], [y], color=colour, linewidth=1.6, capsize=4, **bar)  # type: ignore[arg-type]


def compute(results: Results) -> tuple[Chart | None, str]:
    """Draw the leading metric of each cell against its FLOPs, if these differ, and return a sentence on them."""
    leading = results.plan.metric
    cells = [cell for cell in results.cells if leading in cell.metrics]
    if not cells:
        return None, f"No cell has a {leading} yet."
    unit = "paper_flops" if "paper_flops" in (results.plan.budget or {}) else "flops"
    flops: list[float] = [getattr(cell.costs, unit) for cell in cells]
    if not all(flops):
        return None, "There is no chart of the metric against FLOPs, as these are not known for all measured cells."
    low, high = f"{min(flops):.2e}", f"{max(flops):.2e}"
    if max(flops) <= SAME_COMPUTE * min(flops):
        size = low if low == high else f"{low} to {high}"
        return None, f"All measured cells used the same compute, {size} {UNITS[unit]} each."
    sentence = f"The measured cells used between {low} and {high} {UNITS[unit]} each."
    return _scatter(results, cells, flops, f"training {UNITS[unit]} of the cell"), sentence


@also_printed
def _scatter(results: Results, cells: Sequence[CellResult], xs: Sequence[float], title: str) -> Chart:
    plan = results.plan
    caption = f"{plan.metric} against {title}"
    with drawing() as figure:
        axes = figure.subplots()
        if _is_wide(xs):
            axes.set_xscale("log")
        for label, style in _looks(plan).items():
            places = [i for i, cell in enumerate(cells) if cell.plan.variant == label]
            ys = [cells[i].metrics[plan.metric] for i in places]
            if places:
                style |= {"linestyle": "", "label": label}
                axes.plot([xs[i] for i in places], ys, markersize=6, alpha=0.85, **style)
        finish(axes, title, plan.metric, large=True)
        if in_print(title):
            legend(axes, 1)
        return Chart(caption, svg(figure, "compute", caption), "One mark per cell.")


def curves(results: Results) -> list[Chart]:
    """Draw each cell's records over its FLOPs: on validation text if that gives a curve, otherwise on training text."""
    begun = next((cell.provenance.metrics for cell in results.cells if cell.provenance), {})
    titles = {results.plan.metric: results.plan.metric}
    titles |= {name: heading(metric) for name, metric in titled(begun).items() if metric.chart}
    numbers = {variant.label: number for number, variant in enumerate(results.plan.variants)}
    charts = list[Chart]()
    for key, title in titles.items():
        # A single evaluation at the end is not a curve; the tables have it.
        split, lines = "validation", [_curve(cell, "validation", key) for cell in results.cells]
        if all(len(xs) < 2 for xs, _ in lines):
            split, lines = "training", [_curve(cell, "train", key) for cell in results.cells]
        if all(len(xs) < 2 for xs, _ in lines):
            continue
        caption = f"{title} ({split} text)"
        drawn = [(*line, numbers[cell.plan.variant]) for cell, line in zip(results.cells, lines, strict=True)]
        charts.append(overlay(f"curve-{key}", caption, caption, drawn, "training FLOPs", [*numbers]))
    return charts


def _curve(cell: CellResult, split: str, key: str) -> tuple[list[float], list[float]]:
    """Return FLOPs and values."""
    if key == "discriminator_loss" and any("discriminator_token_loss" in r for r in cell.records):
        return [], []  # for a model that predicts tokens, this is another loss
    return curve(cell.records, split, key, "flops")


def _is_wide(numbers: Collection[float]) -> bool:
    return min(numbers) > 0 and max(numbers) >= SPREAD * min(numbers)
