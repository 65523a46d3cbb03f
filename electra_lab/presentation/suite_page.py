"""The table of a suite on the terminal and as a page: models by tasks, and differences to the first model."""

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from electra_lab.analysis.statistics import Difference, difference, holm, p_text
from electra_lab.presentation.charts import render
from electra_lab.storage.finetuning_folder import FinetuningFolder, SuiteFolder, config_of
from registry import Metric
from registry.errors import CheckpointError


@dataclass(frozen=True)
class Cell:
    """A model on a task: the metric by seed."""

    values: dict[int, float]

    @property
    def median(self) -> float | None:
        return median(self.values.values()) if self.values else None

    def __str__(self) -> str:
        return "-" if self.median is None else f"{100 * self.median:.1f}"


@dataclass(frozen=True)
class Suite:
    """The numbers of a suite. Metrics are shown times 100, as papers do."""

    models: list[str]
    metrics: dict[str, Metric]  # by task
    cells: dict[tuple[str, str], Cell]  # by model and task
    differences: dict[tuple[str, str], Difference]  # to the first model, paired by seed; Holm over all of them
    gaps: dict[str, str]
    failures: dict[str, str]

    def average(self, model: str) -> str:
        """Return the mean over the tasks; a dash if one is missing, as the mean of others compares with nothing."""
        found = [self.cells[model, task].median for task in self.metrics]
        known = [value for value in found if value is not None]
        return f"{100 * sum(known) / len(known):.1f}" if known and len(known) == len(found) else "-"


def read_suite(folder: SuiteFolder) -> Suite:
    """Raises CheckpointError."""
    plan = folder.plan()
    cells = {(m, t): Cell(folder.values(m, t, metric)) for m in plan.models for t, metric in plan.tasks.items()}
    first, *others = plan.models
    pairs = {(m, t): difference(cells[m, t].values, cells[first, t].values) for m in others for t in plan.tasks}
    corrected = holm([each.p for each in pairs.values()])
    differences = {key: replace(each, holm=p) for (key, each), p in zip(pairs.items(), corrected, strict=True)}
    metrics = {task: _metric(folder, plan.models, task, name) for task, name in plan.tasks.items()}
    return Suite(plan.models, metrics, cells, differences, plan.gaps, plan.failures)


def _metric(folder: SuiteFolder, models: list[str], task: str, name: str) -> Metric:
    for model in models:
        held = FinetuningFolder(folder.place(model, task))
        for seed in held.seeds():
            if held.results(seed):
                found = held.seed(seed).provenance().metrics.get(name, Metric())
                return replace(found, title=found.title or name)
    return Metric(title=name)


def table_text(folder: SuiteFolder) -> str:
    """Return the table for a terminal: medians over seeds, times 100, then the differences."""
    suite = read_suite(folder)
    header = ["", *suite.metrics, "average"]
    rows = [[model, *(str(suite.cells[model, task]) for task in suite.metrics), suite.average(model)]
            for model in suite.models]  # fmt: skip
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = ["  ".join(f"{cell:<{widths[0]}}" if i == 0 else f"{cell:>{widths[i]}}" for i, cell in enumerate(row))
             for row in (header, *rows)]  # fmt: skip
    lines += ["", "median over seeds, times 100: " + ", ".join(f"{t} {m.title}" for t, m in suite.metrics.items())]
    for (model, task), found in suite.differences.items():
        if found.mean is not None:
            lines.append(f"{model} - {suite.models[0]} on {task}: {in_words(found)}")
    lines += [f"{task}: left out: {reason}" for task, reason in suite.gaps.items()]
    lines += [f"{pair}: failed: {reason}" for pair, reason in suite.failures.items()]
    return "\n".join(lines)


def in_words(found: Difference) -> str:
    """`-12.3 [-14.0, -10.6] over 5 seeds, Holm p < 0.001`."""
    assert found.mean is not None
    if found.low is None or found.high is None:
        return f"{100 * found.mean:+.1f} over {found.n} seed{'s' * (found.n > 1)} ({found.why})"
    interval = f"[{100 * found.low:+.1f}, {100 * found.high:+.1f}]"
    tested = found.why or f"{found.n} seeds, Holm {p_text(found.holm)}"
    return f"{100 * found.mean:+.1f} {interval} over {tested}"


def write_report(folder: SuiteFolder) -> Path:
    """Write report.html and results.json. Raises CheckpointError."""
    suite, file = read_suite(folder), folder.path / "suite.yaml"
    config = config_of(file)
    if "name" not in config:
        raise CheckpointError(f"{file}: is damaged.")
    folder.write_json(
        "results.json",
        {model: {task: suite.cells[model, task].values for task in suite.metrics} for model in suite.models},
    )
    page = render(
        "suite.html.j2",
        name=config["name"],
        folder=folder.path.name,
        suite=suite,
        differences=[(model, task, in_words(found)) for (model, task), found in suite.differences.items()
                     if found.mean is not None],
    )  # fmt: skip
    folder.write("report.html", page)
    return folder.path / "report.html"
