"""What an ablation says in words: what it would run, and what came of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from electra_lab.ablation.folder import Folder
from electra_lab.ablation.plan import Plan


def forecast(
    plan: Plan, missing: Mapping[str, list[str]], seconds: dict[str, float | None], path: Path, workers: int
) -> str:
    """A line a variant: parameters, steps, compute, memory and time of one cell; then the sums of what is left.

    missing  by the id of each piece, what `Folder.missing` says that it needs
    """
    config = plan.ablation.config
    references = list(plan.references.values())
    total = len(plan.ablation.cells)
    labels = [*(variant.label for variant in plan.ablation.variants), *(cell.id for cell in references)]
    names = {cell.id: cell.variant for cell in references}
    width = max(len(names.get(label, label)) for label in labels)
    others = f", {len(references)} reference run{'s' * (len(references) > 1)}" if references else ""
    columns = f"{'discriminator':>14} {'generator':>12} {'steps':>9} {'FLOPs':>9} {'memory':>9} {'time':>9}"
    lines = [
        f"{config.name}: {len(plan.ablation.variants)} variants x {len(config.seeds)} seeds = {total} cells{others}, "
        f"{sum(not each for each in missing.values())} done already, in {path}",
        "",
        f"  {'':<{width}}  {columns}",
    ]
    for label in labels:
        told = plan.forecasts[label]
        peak = max(told.working_bytes or 0, told.evaluation_bytes or 0)
        memory = f"{(told.state_bytes + peak) / 1e9:.2f} GB" if told.working_bytes else "unknown"
        generator = f"{told.parameters['generator']:,}" if "generator" in told.parameters else "-"
        lines.append(
            f"  {names.get(label, label):<{width}}  {told.parameters['discriminator']:>14,} {generator:>12} "
            f"{told.steps:>9,} {told.flops.total(told.steps):>9.3g} {memory:>9} {_time(seconds[label]):>9}"
        )
    lacking = [cell for cell in plan.pieces if missing[cell.id]]
    left = [cell.id if cell.id in names else cell.variant for cell in lacking if "training" in missing[cell.id]]
    lines += ["", f"  left to do: {_left(plan, left, len(lacking) - len(left), seconds, workers)}."]
    lines += [
        "  Parameters are at most those, as the tokenizer is not trained yet. Times are those of a few steps here",
        "  and now, without evaluation.",
    ]
    return "\n".join(lines)


def _left(plan: Plan, labels: list[str], to_measure: int, seconds: dict[str, float | None], workers: int) -> str:
    """Runs, compute and time of the trainings of `labels`; and how many runs beside them have only to be measured."""
    if not labels:
        return f"nothing to train, {to_measure} to measure" if to_measure else "nothing"
    n = len(labels)
    runs = f"{n} to train, {to_measure} to measure" if to_measure else f"{n} run{'s' * (n > 1)}"
    compute = sum(plan.forecasts[label].flops.total(plan.forecasts[label].steps) for label in labels)
    known = [each for each in map(seconds.__getitem__, labels) if each is not None]
    at_once = min(workers, n)
    if len(known) < n:
        time = "time unknown, as a step is too large to be tried out here"
    else:  # no worker makes the longest shorter
        time = f"about {_time(max(*known, sum(known) / workers))} of training, "
        time += f"{at_once} at a time" if at_once > 1 else "one at a time"
    return f"{runs}, {compute:.3g} FLOPs, {time}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def closing(path: Path) -> str:
    """What was found of the leading quantity, and where the rest is."""
    text = (Folder(path).path / "table.md").read_text(encoding="utf-8")
    leading = re.split(r"(?<= \|)\n\n## ", text, maxsplit=1)[0]  # after its table: a question may look like a heading
    leading = re.sub(r"\\([\\`*<>|#])", r"\1", leading)  # a terminal shows Markdown's escapes
    return f"\n{leading.strip()}\n\nreport {path / 'report.html'}"
