"""The curve and the verdict of docs/findings/crossover_plan.md, from the folders of its ablations, one for each budget.

    python benchmarks/crossover.py runs/crossover_4e13 runs/crossover_4e14 --out build/crossover

It writes curve.svg, and verdict.md with the differences, slopes and sentences. It was written together with the plan,
before any cell was trained.
"""

import argparse
import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib import pyplot
from matplotlib.axes import Axes
from scipy import stats

from electra_lab.analysis.comparisons import holm
from electra_lab.analysis.intervals import Difference, Estimate, difference, estimate

BASELINE, VARIANTS, MEASURE = "mlm", ("electra", "electra_correct"), "chunking"
PLANNED = (4e13, 4e14, 4e15, 4e16)  # FLOPs
LARGEST = PLANNED[-1]  # the budget that H1 and H2 are about
MARGIN = 0.005  # differences that would matter
MARKS = {"electra": "o", "electra_correct": "s"}

Scores = Mapping[str, Mapping[int, float]]  # by variant and seed


@dataclass(frozen=True)
class Budget:
    """The cells of one budget; `rows` are those of its table that have the primary measure."""

    flops: float
    rows: Sequence[Mapping[str, str]]

    @classmethod
    def read(cls, folder: Path) -> "Budget":
        plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        with (folder / "table.csv").open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row[MEASURE]]
        return cls(float(plan["budget"]["flops"]), rows)

    def scores(self) -> Scores:
        scores: dict[str, dict[int, float]] = {}
        for row in self.rows:
            scores.setdefault(row["variant"], {})[int(row["seed"])] = float(row[MEASURE])
        return scores


def differences(budget: Budget) -> dict[str, Difference]:
    """Return each variant minus the baseline, paired by seed."""
    scores = budget.scores()
    return {name: difference(scores.get(name, {}), scores.get(BASELINE, {})) for name in VARIANTS}


def slopes(budgets: Sequence[Budget], variant: str) -> list[float]:
    """Return the least-squares slope over log10 of FLOPs, for each seed that all budgets have."""
    paired: list[dict[int, float]] = []
    for budget in budgets:
        variant_scores, baseline_scores = (budget.scores().get(name, {}) for name in (variant, BASELINE))
        common = variant_scores.keys() & baseline_scores.keys()
        paired.append({seed: variant_scores[seed] - baseline_scores[seed] for seed in common})
    logarithms = [math.log10(budget.flops) for budget in budgets]
    complete = set.intersection(*(set(of_budget) for of_budget in paired))
    of_seeds: list[float] = []
    for seed in sorted(complete):
        fit = stats.linregress(logarithms, [of_budget[seed] for of_budget in paired])
        of_seeds.append(float(fit.slope))
    return of_seeds


def judged(name: str, compared: Difference, p: float | None) -> str:
    """Return the sentence about H1 or H2 by the plan's rule; p is corrected."""
    if compared.mean is None or compared.low is None or compared.high is None or p is None:
        return f"{name}: undecided, as there are fewer than two pairs of seeds at 4e16 FLOPs."
    numbers = f"{compared.mean:+.4f} [{compared.low:+.4f}, {compared.high:+.4f}], p = {p:.2g}, {compared.n} seeds"
    if p < 0.05 and compared.mean > 0:
        return f"{name}: supported ({numbers})."
    if compared.high < MARGIN:
        return f"{name}: refuted ({numbers})."
    return f"{name}: undecided ({numbers})."


def judged_slope(slope: Estimate) -> str:
    """Return the sentence about H3, for the slopes of the seeds that all budgets of the plan have."""
    if slope.mean is None or slope.low is None or slope.high is None:
        return "H3: undecided, as fewer than two seeds are finished at all four budgets."
    numbers = f"{slope.mean:+.4f} [{slope.low:+.4f}, {slope.high:+.4f}] for each factor of ten, {slope.n} seeds"
    kind = "supported" if slope.low > 0 else "refuted" if slope.high < 0 else "undecided"
    return f"H3: {kind} ({numbers})."


def two_sided(compared: Difference) -> float | None:
    """Return the p value of a paired t test, which reports give from five seeds only; None without a spread."""
    if compared.mean is None or not compared.error:
        return None
    return float(2 * stats.t.sf(abs(compared.mean) / compared.error, compared.n - 1))


def verdict(budgets: Sequence[Budget]) -> str:
    """Return the table of differences and the sentences about the hypotheses, as Markdown."""
    lines = ["| FLOPs | variant | seeds | difference to `mlm` | 95% interval |", "|---|---|---|---|---|"]
    for budget in budgets:
        for name, compared in differences(budget).items():
            mean = "-" if compared.mean is None else f"{compared.mean:+.4f}"
            interval = "-" if compared.low is None else f"[{compared.low:+.4f}, {compared.high:+.4f}]"
            lines.append(f"| {budget.flops:.0e} | `{name}` | {compared.n} | {mean} | {interval} |")
    largest = [budget for budget in budgets if budget.flops == LARGEST] or [Budget(LARGEST, [])]
    final = differences(largest[0])
    planned = [budget for budget in budgets if budget.flops in PLANNED]
    corrected = dict(zip(VARIANTS, holm([two_sided(final[name]) for name in VARIANTS]), strict=True))
    sentences = [
        judged("H1", final["electra_correct"], corrected["electra_correct"]),
        judged("H2", final["electra"], corrected["electra"]),
        judged_slope(estimate(slopes(planned, "electra") if len(planned) == len(PLANNED) else [])),
    ]
    return "\n".join([*lines, "", *sentences]) + "\n"


def draw(budgets: Sequence[Budget], file: Path) -> None:
    """Draw the differences with their intervals over the logarithm of compute, one line for each variant.

    A difference without an interval, of one seed, has a hollow marker. Dotted lines are the budgets of the plan.
    """
    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": "crossover"}):  # the same file each time
        figure, axes = pyplot.subplots(figsize=(6.2, 3.4))
        axes.axhline(0, color="black", linewidth=0.8)
        for flops in PLANNED:
            axes.axvline(flops, color="gray", linewidth=0.6, linestyle=":")
        for number, name in enumerate(VARIANTS):
            _draw_variant(axes, budgets, name, f"C{number}", shift=1.06**number)
        axes.set_xscale("log")
        places = [*PLANNED, *(budget.flops for budget in budgets)]
        axes.set_xlim(min(places) / 2, max(places) * 2)
        axes.set_xlabel("FLOPs of pre-training")
        axes.set_ylabel("chunking F1 minus that of mlm")
        axes.legend(frameon=False)
        figure.tight_layout()
        figure.savefig(file, metadata={"Date": None})
        pyplot.close(figure)


def _draw_variant(axes: Axes, budgets: Sequence[Budget], name: str, color: str, shift: float) -> None:
    """Draw the line of a variant; `shift` moves it to the right, so that its intervals can be seen next to others."""
    places: list[float] = []
    means: list[float] = []
    for budget in budgets:
        compared = differences(budget)[name]
        if compared.mean is None:
            continue
        places.append(budget.flops * shift)
        means.append(compared.mean)
        fill, half = ("white", math.nan) if compared.half is None else (color, compared.half)
        axes.errorbar(places[-1], means[-1], half, marker=MARKS[name], color=color, markerfacecolor=fill, capsize=3)
    axes.plot(places, means, color=color, zorder=1)
    axes.plot([], [], marker=MARKS[name], color=color, label=name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folders", nargs="+", type=Path, help="folders of the ablations")
    parser.add_argument("--out", type=Path, default=Path("build/crossover"), help="where the results are written")
    options = parser.parse_args()
    budgets = sorted((Budget.read(folder) for folder in options.folders), key=lambda budget: budget.flops)
    options.out.mkdir(parents=True, exist_ok=True)
    draw(budgets, options.out / "curve.svg")
    text = verdict(budgets)
    (options.out / "verdict.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
