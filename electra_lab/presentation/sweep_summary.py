"""Terminal output of an ablation: its plan, its needs, its result."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from electra_lab.analysis.results import TRAINING, expected
from electra_lab.presentation.text import Table, counted, seconds, shown
from electra_lab.presentation.verdict import power
from electra_lab.storage.plan import Plan, PlannedVariant
from electra_lab.storage.provenance import flat

NETWORKS = ("discriminator", "generator")
Missing = Mapping[str, tuple[str, ...]]  # work left to do, by the id of a cell or of a reference


@dataclass(frozen=True)
class Need:
    """The needs of one run of a variant, or of a reference; None if they are not known."""

    title: str
    parameters: Mapping[str, int]  # by network
    steps: int | None
    flops: float | None
    bytes: float | None
    seconds: float | None  # of training with its evaluations and checkpoints


def overview(plan: Plan, launcher: str, references: dict[str, str]) -> str:
    """Describe the cells and their comparison, one item per line; then each cell.

    references  the names of the runs of measures, by id
    """
    lines = [
        f"{plan.name}: {_size(plan)}",
        f"  base      {plan.base}",
        f"  baseline  {plan.baseline}",
        f"  metric    {plan.metric}",
    ]
    for i, measure in enumerate(plan.measures):
        lines.append(f"  {'' if i else 'measures':<8}  {measure.type}: {', '.join(measure.metrics)}")
    lines += [f"  launcher  {launcher}", "", *differences(plan), ""]
    names = {cell.id: f"{cell.variant}, {cell.task}" if cell.task else cell.variant for cell in plan.cells}
    width = max(map(len, (names | references).values()))
    for id, name in (names | references).items():
        seed = plan.by_id[id].seed if id in names else "-"
        lines.append(f"  {name:<{width}}  seed {seed:<5}  {id}")
    return "\n".join([*lines, *gaps(plan)])


def _size(plan: Plan) -> str:
    tasks = f" x {len(plan.tasks)} tasks" if len(plan.tasks) > 1 else ""
    return f"{len(plan.variants)} variants{tasks} x {counted(len(plan.seeds), 'seed')} = {len(plan.cells)} cells"


def gaps(plan: Plan) -> Iterator[str]:
    """List the tasks whose data is not here."""
    yield from (f"{task}: left out: {reason}" for task, reason in plan.gaps.items())


def differences(plan: Plan) -> Iterator[str]:
    """List the keys of each variant's complete config that differ from the baseline's."""
    yield f"  differences to the baseline, {plan.baseline}:"
    for variant in plan.variants:
        if variant.label != plan.baseline:
            yield f"  {variant.label}:  {'; '.join(_changes(variant)) or 'none'}"


def _changes(variant: PlannedVariant) -> Iterator[str]:
    """Describe each key that differs; not the options of a type that another type lacks, which the page lists."""
    for key, (before, after) in variant.differs.items():
        type_key = f"{key.rpartition('.')[0]}.type"
        is_named = key == type_key or key in flat(variant.changes)
        if None in (before, after) and type_key in variant.differs and not is_named:
            continue
        note = " (not named)" if key in variant.beyond else ""
        yield f"{key} {shown(before)} -> {shown(after)}{note}"


def forecast(plan: Plan, needs: Mapping[str, Need], missing: Missing, path: Path, workers: int) -> str:
    """Describe the remaining work, and the needs of each variant, if they are known.

    needs    needs by variant, and by the id of a reference
    missing  missing work of each reference and cell
    """
    others = f", {counted(len(plan.references), 'reference run')}" if plan.references else ""
    done = sum(not lacking for lacking in missing.values())
    lines = [f"{plan.name}: {_size(plan)}{others}, {done} already done, in {path}", ""]
    if needs:
        lines += [_table(needs.values()), ""]
    # The comparison.
    spreads = [*filter(None, [expected(plan)])]
    sentence = power(plan.metric, len(plan.seeds), len(plan.variants) - 1, spreads)
    lines += [*differences(plan), ""]
    if sentence:
        lines.append(f"  {sentence}")
    # The remaining work.
    lacking = [id for id in missing if missing[id]]
    to_train = [id for id in lacking if TRAINING in missing[id]]
    costs = [needs.get(id) or needs.get(plan.by_id[id].variant) for id in to_train]
    lines.append(f"  left to do: {_left(costs, len(lacking) - len(to_train), workers)}.")
    if needs:
        lines += [
            "  Parameters are upper bounds, as a dry run does not read the tokenizer. Times are extrapolated from some",
            "  steps and evaluations here and now; measures are not included.",
        ]
    return "\n".join([*lines, *(f"  {line}" for line in gaps(plan))])


def search_forecast(
    plan: Plan,
    needs: Mapping[str, Need],
    trials: int,
    confirmations: int,
    path: Path,
    workers: int,
    prune: bool = False,
    budget: float | None = None,
) -> str:
    """Describe the cost of a search, judging by the base and the ends of each range.

    trials         number of trials that are left
    confirmations  number of runs with fresh seeds
    prune          True if it ends trials early
    budget         training FLOPs of trials, after which none begins
    """
    runs = (trials + 1) * len(plan.seeds) + confirmations + len(plan.references)
    lines = [f"{plan.name}: a search, in {path}", "", *([_table(needs.values()), ""] if needs else [])]
    lines.append(
        f"  left to do: at most {counted(trials, 'trial')} and the base, {counted(len(plan.seeds), 'seed')} each"
    )
    lines[-1] += f"; {confirmations} runs with fresh seeds" if confirmations else ""
    lines[-1] += f"; {counted(len(plan.references), 'reference run')}" if plan.references else ""
    flops = [need.flops for need in needs.values() if need.flops is not None]
    times = [need.seconds for need in needs.values() if need.seconds is not None]
    if flops:
        lines.append(f"  compute: {runs * min(flops):.3g} to {runs * max(flops):.3g} FLOPs")
        lines[-1] += "; pruning saves some of them" if prune else ""
        lines[-1] += f"; no trial begins after {budget:.3g} FLOPs of trials" if budget else ""
    if times:
        at_once = f"{workers} at a time" if workers > 1 else "one at a time"
        low, high = (seconds(runs * time / workers) for time in (min(times), max(times)))
        lines.append(f"  time: about {low} to {high} of training, {at_once}")
    return "\n".join(lines)


def _table(needs: Iterable[Need]) -> str:
    rows = []
    for need in needs:
        sizes = [f"{need.parameters[name]:,}" if name in need.parameters else "-" for name in NETWORKS]
        memory = f"{need.bytes / 1e9:.2f} GB" if need.bytes else "unknown"
        steps = "unknown" if need.steps is None else f"{need.steps:,}"
        flops = "unknown" if need.flops is None else f"{need.flops:.3g}"
        time = "unknown" if need.seconds is None else seconds(need.seconds)
        rows.append([need.title, *sizes, steps, flops, memory, time])
    return Table("", ["", *NETWORKS, "steps", "FLOPs", "memory", "time"], rows).text()


def _left(costs: Sequence[Need | None], to_measure: int, workers: int) -> str:
    """Describe number, compute and time of the runs left to train, and the number of others that only need measures."""
    n = len(costs)
    if not n:
        return f"nothing to train, {to_measure} to measure" if to_measure else "nothing"
    runs = f"{n} to train, {to_measure} to measure" if to_measure else counted(n, "run")
    flops = [need.flops for need in costs if need and need.flops is not None]
    times = [need.seconds for need in costs if need and need.seconds is not None]
    if len(flops) < n:
        return runs
    at_once = min(workers, n)
    if len(times) < n:
        time = "time unknown, as no step was tried"
    else:  # no worker makes the longest shorter
        time = f"about {seconds(max(*times, sum(times) / workers))} of training, "
        time += f"{at_once} at a time" if at_once > 1 else "one at a time"
    return f"{runs}, {sum(flops):.3g} FLOPs, {time}"


def progress(plan: Plan) -> str:
    """Say how many trials of a search have begun, and why it has ended if it has; "" for other ablations."""
    search = plan.search
    if search is None:
        return ""
    pruned = sum(trial.state == "pruned" for trial in search.begun)
    text = f"{len(search.begun)} of at most {counted(search.trials, 'trial')} have begun; {pruned} were pruned."
    if search.budget is not None and len(search.begun) < search.trials and not search.may_begin:
        text += f" The search has ended, as trials used {search.spent:.3g} FLOPs of a budget of {search.budget:.3g}."
    return text


def opening(plan: Plan, left: Collection[str], path: Path) -> str:
    """Return the number of cells, and of those that are done. `left` has the ids of the others."""
    references = f" and {len(plan.references)} for measures" if plan.references else ""
    return f"{plan.name}: {len(plan.cells)} cells{references}, {len(plan.wanted) - len(left)} already done, in {path}"


def closing(path: Path) -> str:
    """Return the result for the leading metric, and the place of the rest."""
    text = (path / "table.md").read_text(encoding="utf-8")
    leading = re.split(r"(?<= \|)\n\n## ", text, maxsplit=1)[0]  # after its table: a question may look like a heading
    leading = re.sub(r"\\([\\`*<>|#])", r"\1", leading)  # Markdown's escapes are not for a terminal
    return f"\n{leading.strip()}\n\nreport {path / 'report.html'}"
