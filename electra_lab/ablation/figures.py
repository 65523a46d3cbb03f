"""The pictures of an ablation's report. A variant has one colour and one marker in all of them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from electra_lab.ablation.results import Cell, Plan, Results
from electra_lab.ablation.statistics import Values, estimate, named
from electra_lab.charts import SOFT, drawing, look, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEIGHT = 3.0
WIDTH = 4.4  # inches: the text is 11 px high on a phone 360 px wide
SPREAD = 20  # an axis whose largest number is so many times its smallest is logarithmic
SAME_COMPUTE = 1.02  # cells whose FLOPs differ by less got the same compute: a budget ends at a whole step
POINTS = 200  # of a curve, at most


@dataclass(frozen=True)
class Picture:
    """`caption` says what it is, `note` how to read it."""

    caption: str
    note: str
    svg: str


def keys(plan: Plan, name: str) -> dict[str, str]:
    """By variant, its colour and marker, to stand beside its name. `name` keeps the ids of two lists apart."""
    return {variant.label: _key(i, f"{name}{i}") for i, variant in enumerate(plan.variants)}


def _key(index: int, name: str) -> str:
    with drawing(0.4, 0.18) as figure:
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.axis("off")
        axes.plot([0, 1, 2], [0, 0, 0], linewidth=1.6, markevery=[1], markersize=6, **look(index))
        return svg(figure, name)


def leading(results: Results) -> Picture | None:
    """The leading quantity of each variant: mean, interval, and each seed's run."""
    plan, values = results.plan, results.values(results.plan.leading)
    if not any(values.values()):
        return None
    caption = f"{plan.leading} of each variant ({plan.quantities[plan.leading].direction})"
    note = "Filled: the mean with its 95% interval. Hollow: the single seeds, whose luck all variants share."
    index = {variant.label: i for i, variant in enumerate(plan.variants)}
    grid = len(plan.keys) == 2 and all(set(plan.keys) <= v.changes.keys() for v in plan.variants)
    first = plan.numbers(plan.keys[0]) if grid else plan.axis
    if not first and not grid:
        return Picture(caption, note, _rows(plan, values, index, caption))

    with drawing(WIDTH, HEIGHT + 0.3 if grid else HEIGHT) as figure:
        axes = figure.subplots()
        columns = {_text(v.changes[plan.keys[0]]): None for v in plan.variants}
        place = first or {v.label: float(list(columns).index(_text(v.changes[plan.keys[0]]))) for v in plan.variants}
        log = bool(first) and _is_wide(first.values())
        if log:
            axes.set_xscale("log")
        lines: dict[str, list[str]] = {}
        for v in plan.variants:
            lines.setdefault(_text(v.changes[plan.keys[1]]) if grid else "", []).append(v.label)
        ordered = sorted(set(place.values()))
        for i, (second, labels) in enumerate(lines.items()):
            style = look(i) if grid else {"color": SOFT}
            # Beside each other, so that the lines' intervals do not cover one another.
            shift = (i - (len(lines) - 1) / 2) * 0.05
            at = {label: _shifted(place[label], shift, ordered, log) for label in labels}
            shown = [label for label in sorted(labels, key=place.__getitem__) if values[label]]
            means = [float(np.mean(list(values[label].values()))) for label in shown]
            axes.plot([at[label] for label in shown], means, color=style["color"], linewidth=1, alpha=0.6, zorder=1)
            for label in shown:
                own = style if grid else look(index[label])
                _mark(axes, at[label], list(values[label].values()), own, across=False)
            if grid:
                axes.plot([], [], linewidth=1, label=f"{plan.keys[1]} = {second}", **style)
        _ticks(axes, ordered, [f"{x:g}" for x in ordered] if first else list(columns), log)
        axes.set_xlabel(plan.keys[0])
        _finish(axes, plan.leading)
        if grid:
            axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(0, -0.2))
            note += f" One line for each value of {plan.keys[1]}."
        return Picture(caption, note, svg(figure, "leading", caption))


def differences(results: Results) -> Picture | None:
    """Of each variant but the baseline, the leading quantity's difference to it, seed by seed."""
    plan, values = results.plan, results.values(results.plan.leading)
    base = values[plan.baseline]
    paired = {
        label: {seed: value - base[seed] for seed, value in each.items() if seed in base}
        for label, each in values.items()
        if label != plan.baseline
    }
    if not any(paired.values()):
        return None
    index = {variant.label: i for i, variant in enumerate(plan.variants) if variant.label in paired}
    caption = f"{plan.leading}: difference to {named(plan.baseline)}"
    note = (
        "Filled: the mean difference with its 95% paired interval. Hollow: the single seeds. The line is no difference."
    )
    return Picture(caption, note, _rows(plan, paired, index, caption, zero=True))


def _rows(plan: Plan, values: Values, index: Mapping[str, int], caption: str, zero: bool = False) -> str:
    """A row a variant, where names stand in the place of numbers."""
    with drawing(WIDTH, max(HEIGHT, 0.75 + 0.45 * len(index))) as figure:
        axes = figure.subplots()
        if zero:
            axes.axvline(0, color=SOFT, linewidth=1, linestyle="--")
        for row, (label, i) in enumerate(index.items()):
            _mark(axes, -row, list(values[label].values()), look(i), across=True)
        key = f"{plan.keys[0]}=" if len(plan.keys) == 1 else ""
        key = key if all(label.startswith(key) for label in index) else ""
        axes.set_yticks([-row for row in range(len(index))], [_wrapped(label.removeprefix(key)) for label in index])
        axes.set_ylim(-len(index) + 0.4, 0.6)
        axes.tick_params(axis="y", length=0)
        axes.locator_params(axis="x", nbins=5)
        axes.set_xlabel(f"difference in {plan.leading}" if zero else plan.leading)
        _finish(axes, plan.keys[0] if key else "")
        return svg(figure, "differences" if zero else "leading", caption)


def _mark(axes: Axes, at: float, values: Sequence[float], style: dict[str, Any], across: bool) -> None:
    """A mean with its interval, and the values that it is of."""
    if not values:
        return
    found = estimate(values)
    colour, marker = style["color"], style["marker"]
    assert found.mean is not None
    xs, ys = (values, [at] * len(values)) if across else ([at] * len(values), values)
    x, y = (found.mean, at) if across else (at, found.mean)
    axes.scatter(xs, ys, facecolors="none", edgecolors=colour, marker=marker, s=22, linewidths=0.9, alpha=0.8, zorder=3)
    axes.scatter(x, y, color=colour, marker=marker, s=46, zorder=4)
    if found.half is not None:
        bar = {"xerr": found.half} if across else {"yerr": found.half}
        axes.errorbar([x], [y], color=colour, linewidth=1.6, capsize=4, **bar)  # type: ignore[arg-type]


def compute(results: Results) -> tuple[Picture | None, str]:
    """The leading quantity of each cell against what the cell cost, and a sentence on the compute.

    At equal FLOPs that would be one column; then the parameters of the networks stand in their place, if they differ.
    """
    leading = results.plan.leading
    cells = [cell for cell in results.cells if leading in cell.values]
    flops = [cell.flops for cell in cells if cell.flops]
    totals = [float(cell.parameters["total"]) for cell in cells if cell.parameters.get("total")]
    if not cells:
        return None, f"No cell has a {leading} yet."
    if len(flops) < len(cells):
        return None, "There is no picture of quality against FLOPs, as they are not known of all measured cells."
    if max(flops) > SAME_COMPUTE * min(flops):
        said = f"The measured cells spent between {min(flops):.2e} and {max(flops):.2e} FLOPs each."
        return _scatter(results, cells, flops, "training FLOPs of the cell"), said
    low, high = f"{min(flops):.2e}", f"{max(flops):.2e}"
    said = f"All measured cells spent the same compute, {low if low == high else f'{low} to {high}'} FLOPs each"
    if len(totals) < len(cells) or max(totals) == min(totals):
        return None, f"{said}, and their networks have as many parameters: quality depends on neither here."
    said += ", so that a picture over FLOPs would be one column. Over the parameters of both networks it is this."
    return _scatter(results, cells, totals, "parameters, both networks"), said


def _scatter(results: Results, cells: Sequence[Cell], xs: Sequence[float], what: str) -> Picture:
    plan = results.plan
    caption = f"{plan.leading} against {what}"
    with drawing(WIDTH, HEIGHT) as figure:
        axes = figure.subplots()
        if _is_wide(xs):
            axes.set_xscale("log")
        for i, variant in enumerate(plan.variants):
            points = [
                (x, c.values[plan.leading]) for x, c in zip(xs, cells, strict=True) if c.plan.variant == variant.label
            ]
            if points:
                axes.plot(*zip(*points, strict=True), linestyle="", markersize=6, alpha=0.85, **look(i))
        axes.set_xlabel(what)
        axes.xaxis.set_major_formatter(lambda x, _: _short(x))
        axes.xaxis.set_minor_formatter(lambda x, _: "")
        axes.locator_params(axis="x", nbins=5) if axes.get_xscale() == "linear" else None
        _finish(axes, plan.leading)
        return Picture(caption, "One mark a cell.", svg(figure, "compute", caption))


CURVES = {
    "discriminator_auc": "Discriminator AUC on its own generator",
    "generator_loss": "Generator loss, nats",
    "discriminator_loss": "Discriminator loss, nats",
    "discriminator_token_loss": "Token loss of the network under study, nats",
}


def curves(results: Results) -> list[Picture]:
    """What was logged of each cell over its FLOPs: one colour a variant, one thin line a seed.

    Held-out text where it was looked at while training went on, else the training text.
    """
    titles = {results.plan.leading: results.plan.leading} | CURVES
    pictures: list[Picture] = []
    for key, title in titles.items():
        by_split = {split: [_curve(cell, split, key) for cell in results.cells] for split in ("held_out", "train")}
        # One look at the end is no curve; the tables have it.
        by_split = {split: lines for split, lines in by_split.items() if any(len(xs) > 1 for xs, _ in lines)}
        if not by_split:
            continue
        split = next(iter(by_split))
        text = "held-out" if split == "held_out" else "training"
        caption = f"{title} ({text} text)"
        with drawing(WIDTH, HEIGHT) as figure:
            axes = figure.subplots()
            for cell, (xs, ys) in zip(results.cells, by_split[split], strict=True):
                i = next(i for i, v in enumerate(results.plan.variants) if v.label == cell.plan.variant)
                every = max(1, len(xs) // 5)  # a few markers a line: they, not the colour alone, tell the variant
                axes.plot(xs, ys, linewidth=1, markersize=3.5, alpha=0.85, markevery=every, **look(i))
            axes.set_xlabel("training FLOPs")
            axes.xaxis.set_major_formatter(lambda x, _: _short(x))
            axes.locator_params(axis="x", nbins=5)
            _finish(axes, "")
            pictures.append(Picture(caption, "", svg(figure, f"curve-{len(pictures)}", caption)))
    return pictures


def _curve(cell: Cell, split: str, key: str) -> tuple[list[float], list[float]]:
    """FLOPs and values. A held-out record has no FLOPs: those of its step follow from the training records."""
    train = [(r["step"], r["flops"]) for r in cell.records if r["split"] == "train" and r.get("flops")]
    if key == "discriminator_loss" and any("discriminator_token_loss" in r for r in cell.records):
        return [], []  # of a network that predicts tokens this is another loss
    points = [(r["step"], r[key]) for r in cell.records if r["split"] == split and _is_number(r.get(key))]
    if not train or not points:
        return [], []
    points = points[:: -(-len(points) // POINTS)] + ([points[-1]] if len(points) > POINTS else [])
    known = [(0, 0), *train]
    flops = np.interp([step for step, _ in points], [s for s, _ in known], [f for _, f in known])
    return flops.tolist(), [value for _, value in points]


def _finish(axes: Axes, ylabel: str) -> None:
    axes.set_ylabel(ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(SOFT)
    axes.grid(alpha=0.25)


def _ticks(axes: Axes, places: Sequence[float], labels: Sequence[str], log: bool) -> None:
    """Ticks at the values that were tried, but for those whose labels would run into their neighbour's."""
    scaled = np.log(places) if log else np.asarray(places)
    width = float(scaled[-1] - scaled[0]) or 1.0
    kept: list[int] = []
    for i, x in enumerate(scaled):
        room = 0.028 * max(len(labels[i]), len(labels[kept[-1]]) if kept else 0)
        if not kept or x - scaled[kept[-1]] >= room * width:
            kept.append(i)
    axes.set_xticks([places[i] for i in kept], [_wrapped(labels[i], 12) for i in kept])
    axes.minorticks_off()
    if len(places) > 1:
        edges = [scaled[0] - 0.08 * width, scaled[-1] + 0.08 * width]
        axes.set_xlim(*(np.exp(np.clip(edges, -700, 700)) if log else edges))


def _shifted(x: float, share: float, places: Sequence[float], log: bool) -> float:
    """x moved sideways by a share of the distance of the nearest places."""
    if len(places) < 2 or not share:
        return x
    scaled = np.log(places) if log else np.asarray(places)
    step = share * float(np.min(np.diff(scaled)))
    return float(x * np.exp(step)) if log else x + step


def _is_wide(numbers: Iterable[float]) -> bool:
    every = list(numbers)
    return min(every) > 0 and max(every) >= SPREAD * min(every)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _wrapped(label: str, width: int = 22) -> str:
    """A label in at most three short lines; the whole of it stands in the tables."""
    parts = re.split(r"(?<=[,;])(?=\S)", label)
    lines = [line for part in parts for line in textwrap.wrap(part, width, break_on_hyphens=False)] or [""]
    return "\n".join(lines[:3]) + ("..." if len(lines) > 3 else "")


def _short(number: float) -> str:
    """1.2e12 is 1.2T: the thousands, millions, and so on that people read FLOPs and parameters in."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.4g}{letter}"
    return f"{number:.4g}"
