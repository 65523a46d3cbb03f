"""What an ablation says in words: what it would run, and what came of it."""

from __future__ import annotations

import re
from pathlib import Path

from electra_lab.ablation.folder import Folder
from electra_lab.ablation.plan import Plan


def forecast(plan: Plan, done: set[str], seconds: dict[str, float | None], path: Path, workers: int) -> str:
    """A line a variant: parameters, steps, compute, memory and time of one cell; then the sums."""
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
        f"{len(done)} done already, in {path}",
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
    left = [cell.id if cell.id in names else cell.variant for cell in plan.pieces if cell.id not in done]
    known = [seconds[label] for label in left]
    compute = sum(plan.forecasts[label].flops.total(plan.forecasts[label].steps) for label in left)
    several = f"{workers} at a time" if workers > 1 else "one at a time"
    if all(each is not None for each in known):
        time = f"about {_time(sum(each or 0.0 for each in known) / workers)} of training, {several}"
    else:
        time = "time unknown, as a step is too large to be tried out here"
    lines += [
        "",
        f"  left to do: {len(left)} runs, {compute:.3g} FLOPs, {time}.",
        "  Parameters are at most those, as the tokenizer is not trained yet. Times are those of a few steps here",
        "  and now, without evaluation.",
    ]
    return "\n".join(lines)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def closing(path: Path) -> str:
    """What was found of the leading quantity, and where the rest is."""
    leading = "## ".join((Folder(path).path / "table.md").read_text(encoding="utf-8").split("## ")[:2])
    leading = re.sub(r"\\([\\`*<>|])", r"\1", leading)  # a terminal shows Markdown's escapes
    return f"\n{leading.strip()}\n\nreport {path / 'report.html'}"
