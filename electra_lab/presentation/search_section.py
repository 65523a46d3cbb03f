"""The part of an ablation's page that shows a search: trials, the best so far, and the comparison on fresh seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from electra_lab.analysis.results import Results, read
from electra_lab.presentation.pages import SOFT, Chart, drawing, finish, look, svg
from electra_lab.presentation.sweep_summary import progress
from electra_lab.presentation.text import Table, counted, number, shown
from electra_lab.presentation.verdict import comparison, verdict
from electra_lab.storage.ablation_folder import is_ablation_folder
from electra_lab.storage.plan import PlannedSearch


@dataclass(frozen=True)
class Section:
    """confirmed: sentences of the comparison on fresh seeds; link: its page, "" if there is none yet."""

    sentence: str
    charts: Sequence[Chart]
    trials: Table
    importances: Table
    confirmed: Sequence[str] = ()
    link: str = ""


def section(results: Results) -> Section | None:
    """Return the part of a search; None for other ablations."""
    search = results.plan.search
    if search is None:
        return None
    importances = [[key, f"{share:.0%}"] for key, share in search.importances.items()]
    confirmed, link = list[str](), ""
    if search.confirmation and is_ablation_folder(results.folder / search.confirmation):
        confirmation = read(results.folder / search.confirmation)
        metric = confirmation.plan.metric
        for row in comparison(confirmation, metric, confirmation.plan.metrics[metric]):
            if row.difference and row.difference.mean is not None:
                seeds = counted(row.difference.n, "fresh seed")
                confirmed.append(f"{row.variant} minus base, over {seeds}: {row.difference_text} in {metric}.")
        confirmed += verdict(confirmation)[:1]
        page = results.folder / search.confirmation / "report.html"
        link = f"{search.confirmation}/report.html" if page.is_file() else ""
    return Section(
        progress(results.plan),
        [*filter(None, [_best_so_far(results, search)])],
        _trials(search, results.plan.metric),
        Table("Importance", ["key", "share of the variance"], importances),
        confirmed,
        link,
    )


def _trials(search: PlannedSearch, metric: str) -> Table:
    rows = []
    for trial in search.begun:
        values = [shown(trial.values.get(key)) for key in search.space]
        again = f"as {trial.variant}" if trial.variant not in ("", f"trial {trial.number}") else ""
        told = number(trial.value) if trial.value is not None else "-"
        rows.append([f"trial {trial.number}", *values, told, trial.state, trial.note or again])
    return Table("Trials", ["trial", *search.space, metric, "state", "note"], rows, [*search.space, "note"])


def _best_so_far(results: Results, search: PlannedSearch) -> Chart | None:
    """Draw the result of each trial, the best one so far, and the base."""
    plan = results.plan
    done = [(trial.number, trial.value) for trial in search.begun if trial.value is not None]
    if not done:
        return None
    numbers, values = zip(*done, strict=True)
    best = [*accumulate(values, max if plan.metrics[plan.metric].higher_is_better else min)]
    caption = f"{plan.metric} of each trial ({plan.metrics[plan.metric].direction})"
    with drawing() as figure:
        axes = figure.subplots()
        axes.plot(numbers, values, linestyle="", markersize=6, **look(0))
        axes.step(numbers, best, where="post", color=look(0)["color"], linewidth=1.4)
        for value in results.values(plan.metric)[plan.baseline].values():
            axes.axhline(value, color=SOFT, linewidth=1, linestyle="--")
        finish(axes, "trial", plan.metric, large=True)
        note = "Marks: the trials. Line: the best so far. Dashed: the base, with each seed."
        return Chart(caption, svg(figure, "trials", caption), note)
