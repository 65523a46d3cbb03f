"""Terminal output of an ablation: its plan, its needs, its result."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from electra_lab.analysis import power
from electra_lab.analysis.results import shown
from electra_lab.jobs.sweeps.file import LoadedAblation, metrics_of
from electra_lab.jobs.sweeps.plan import Checked, by_id
from electra_lab.planning.forecast import Forecast
from electra_lab.storage.ablation_folder import AblationFolder

Seconds = Mapping[str, float | None]  # of a training, by variant; None if it is not known
Missing = Mapping[str, tuple[str, ...]]  # by the id of each piece, what is left to do


def overview(checked: Checked) -> str:
    """Describe what is run and how it is compared, one item per line; then each cell."""
    ablation, config = checked.ablation, checked.ablation.config
    lines = [
        f"{config.name}: {len(ablation.variants)} variants x {len(config.seeds)} seeds = {len(ablation.cells)} cells",
        f"  base      {config.base}",
        f"  baseline  {ablation.baseline}",
        f"  metric    {checked.metric}",
    ]
    for i, each in enumerate(config.measure):
        lines.append(f"  {'' if i else 'measures':<8}  {each.type}: {', '.join(metrics_of(each))}")
    lines += [f"  launcher  {config.launcher.type}", "", *differences(checked), ""]
    pieces = [*ablation.cells, *by_id(checked.references).values()]
    width = max(len(piece.variant) for piece in pieces)
    lines += [f"  {piece.variant:<{width}}  seed {piece.seed:<5}  {piece.id}" for piece in pieces]
    return "\n".join(lines)


def differences(checked: Checked) -> Iterator[str]:
    """List the keys of each variant's complete config that differ from the baseline's."""
    ablation = checked.ablation
    yield f"  differences to the baseline, {ablation.baseline}:"
    for label in ablation.differences:
        if label != ablation.baseline:
            yield f"  {label}:  {'; '.join(_changes(ablation, label)) or 'none'}"


def _changes(ablation: LoadedAblation, label: str) -> Iterator[str]:
    """Describe each key that differs; in parentheses after a type that changes, the options that only one has."""
    base, own, changed = ablation.configs[ablation.baseline], ablation.configs[label], ablation.differences[label]
    options: dict[str, list[str]] = {key: [] for key in changed}
    for key in changed:
        of = f"{key.rpartition('.')[0]}.type"
        if of in changed and of != key and (key in base) != (key in own):
            options[of].append(key)
            del options[key]
    for key, alone in options.items():
        names = {each: each.rpartition(".")[2] for each in alone}
        gained = ", ".join(f"{names[each]} {shown(own[each])}" for each in alone if each in own)
        lost = ", ".join(names[each] for each in alone if each in base)
        notes = [f"with {gained}"] * bool(gained) + [f"without {lost}"] * bool(lost)
        notes += ["not named"] * (key in ablation.beyond[label])
        before, after = changed[key]
        yield f"{key} {shown(before)} -> {shown(after)}" + f" ({'; '.join(notes)})" * bool(notes)


def forecast(
    checked: Checked, forecasts: Mapping[str, Forecast], missing: Missing, seconds: Seconds, path: Path, workers: int
) -> str:
    """Describe one cell of each variant: parameters, steps, compute, memory and time; then what is left to do."""
    ablation, config = checked.ablation, checked.ablation.config
    names = {id: cell.variant for id, cell in by_id(checked.references).items()}
    width = max(len(names.get(label, label)) for label in forecasts)
    others = f", {len(names)} reference run{'s' * (len(names) > 1)}" if names else ""
    columns = f"{'discriminator':>14} {'generator':>12} {'steps':>9} {'FLOPs':>9} {'memory':>9} {'time':>9}"
    lines = [
        f"{config.name}: {len(ablation.variants)} variants x {len(config.seeds)} seeds = {len(ablation.cells)} cells"
        f"{others}, {sum(not each for each in missing.values())} already done, in {path}",
        "",
        f"  {'':<{width}}  {columns}",
    ]
    for label, needs in forecasts.items():
        peak = max(needs.working_bytes or 0, needs.evaluation_bytes or 0)
        memory = f"{(needs.state_bytes + peak) / 1e9:.2f} GB" if needs.working_bytes else "unknown"
        generator = f"{needs.parameters['generator']:,}" if "generator" in needs.parameters else "-"
        lines.append(
            f"  {names.get(label, label):<{width}}  {needs.parameters['discriminator']:>14,} {generator:>12} "
            f"{needs.steps:>9,} {needs.flops.total(needs.steps):>9.3g} {memory:>9} {_time(seconds[label]):>9}"
        )
    lacking = [cell for cell in checked.pieces if missing[cell.id]]
    to_train = [cell.id if cell.id in names else cell.variant for cell in lacking if "training" in missing[cell.id]]
    left = _left(forecasts, to_train, len(lacking) - len(to_train), seconds, workers)
    plan = checked.plan(AblationFolder(path))
    known = [plan.expected] if plan.expected else []
    found = power.sentence(plan.metric, len(config.seeds), len(ablation.variants) - 1, known)
    lines += [
        "",
        *differences(checked),
        "",
        *([f"  {found}"] if found else []),
        f"  left to do: {left}.",
        "  Parameters are upper bounds, as a dry run does not read the tokenizer. Times are extrapolated from a few",
        "  steps here and now, without evaluation.",
    ]
    return "\n".join(lines)


def _left(forecasts: Mapping[str, Forecast], labels: list[str], to_measure: int, seconds: Seconds, workers: int) -> str:
    """Describe runs, compute and time of the trainings of `labels`, and how many other runs only need measures."""
    if not labels:
        return f"nothing to train, {to_measure} to measure" if to_measure else "nothing"
    n = len(labels)
    runs = f"{n} to train, {to_measure} to measure" if to_measure else f"{n} run{'s' * (n > 1)}"
    compute = sum(forecasts[label].flops.total(forecasts[label].steps) for label in labels)
    known = [each for each in map(seconds.__getitem__, labels) if each is not None]
    at_once = min(workers, n)
    if len(known) < n:
        time = "time unknown, as a step is too large to be tried here"
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
    """Return the result for the leading metric, and the place of the rest."""
    text = (path / "table.md").read_text(encoding="utf-8")
    leading = re.split(r"(?<= \|)\n\n## ", text, maxsplit=1)[0]  # after its table: a question may look like a heading
    leading = re.sub(r"\\([\\`*<>|#])", r"\1", leading)  # Markdown's escapes are not for a terminal
    return f"\n{leading.strip()}\n\nreport {path / 'report.html'}"
