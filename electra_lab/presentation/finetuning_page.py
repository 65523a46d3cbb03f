"""report.html of a fine-tuning: one self-contained page from its folder alone, which loads nothing."""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median, stdev
from typing import Any

from electra_lab.analysis.findings import heading, titled
from electra_lab.analysis.records import points
from electra_lab.analysis.statistics import estimate
from electra_lab.presentation.charts import drawing, look, render, svg
from electra_lab.storage.files import read_text
from electra_lab.storage.finetuning_folder import FinetuningFolder, config_of
from registry import Metric
from registry.errors import CheckpointError

LONGEST_TEXT = 400  # characters of an example's fields that are shown
MOST_ROWS = 200  # of a table


@dataclass(frozen=True)
class Row:
    """A metric on a split over the seeds; None where no seed has a number. The interval is Student's t."""

    name: str
    title: str
    meaning: str
    values: dict[int, float]
    median: float | None
    mean: float | None
    deviation: float | None
    low: float | None
    high: float | None

    @property
    def seeds(self) -> int:
        return len(self.values)


def results_table(folder: FinetuningFolder) -> dict[str, list[Row]]:
    """Return, for each held-out split, its metrics over the finished seeds, the leading one first.

    A split without labels has none. Raises CheckpointError.
    """
    seeds = [seed for seed in folder.seeds() if folder.results(seed)]
    if not seeds:
        return {}
    metrics, first = folder.seed(seeds[0]).provenance().metrics, folder.results(seeds[0])
    assert first is not None
    return {
        split: [_row(folder, split, name, metric) for name, metric in metrics.items() if name in each.metrics]
        for split, each in first.splits.items()
    }


def _row(folder: FinetuningFolder, split: str, name: str, metric: Metric) -> Row:
    values = folder.values(split, name)
    numbers = list(values.values())
    over = estimate(numbers)
    return Row(
        name=name,
        title=metric.title or name,
        meaning=metric.summary,
        values=values,
        median=median(numbers) if numbers else None,
        mean=over.mean,
        deviation=stdev(numbers) if len(numbers) > 1 else None,
        low=over.low,
        high=over.high,
    )


def write_report(folder: FinetuningFolder) -> Path:
    """Write report.html and results.json, the numbers over all seeds. Raises CheckpointError."""
    file = folder.path / "finetuning.yaml"
    config = config_of(file)
    table, seeds = results_table(folder), [seed for seed in folder.seeds() if folder.results(seed)]
    folder.write_json(
        "results.json",
        {split: {row.name: {"median": row.median, "mean": row.mean, "sd": row.deviation, "low": row.low,
                            "high": row.high, "values": row.values} for row in rows}
         for split, rows in table.items()},
    )  # fmt: skip
    shown = _shown(table, seeds)
    try:
        facts, name, most = _facts(folder, config, seeds), config["name"], config["evaluate"]["errors"]
    except (KeyError, TypeError):
        raise CheckpointError(f"{file}: is damaged.") from None
    page = render(
        "finetuning.html.j2",
        name=name,
        folder=folder.path.name,
        facts=facts,
        table=table,
        seeds=seeds,
        curve=_curve(folder, table),
        shown=shown,
        tables=_tables(folder, shown),
        most_rows=MOST_ROWS,
        errors=_errors(folder, shown, most),
        config=read_text(file),
        provenance=json.dumps(folder.seed(shown).read_json("provenance.json"), indent=1) if seeds else "",
    )
    folder.write("report.html", page)
    return folder.path / "report.html"


def _facts(folder: FinetuningFolder, config: dict[str, Any], seeds: list[int]) -> list[tuple[str, str]]:
    if not seeds:
        return []
    began = folder.seed(seeds[0]).provenance()
    environment = began.environment
    documents = ", ".join(f"{split} {number:,}" for split, number in began.data.documents.items())
    left_out = "".join(f"; {number:,} of {split} left out" for split, number in began.data.skipped.items())
    facts = [
        ("model", f"{config['network'] + ' of ' if began.steps else ''}{config['model']}, weights {config['init']}"),
        ("task", f"{config['task']['type']} on {config['dataset']['type']}"),
        ("examples", documents + left_out),
        ("parameters", ", ".join(f"{key} {value:,}" for key, value in began.parameters.items())),
        ("device", f"{environment.device}, {environment.precision}, threads: {environment.threads}"),
    ]
    if absent := [seed for seed in config["seeds"] if seed not in seeds]:
        facts.append(("not finished", f"seed{'s' * (len(absent) > 1)} {', '.join(map(str, absent))}"))
    facts += lost(folder, seeds[0])
    for seed in seeds:
        facts += [(title, f"seed {seed}, {text}") for title, text in folder.seed(seed).provenance().changed]
    if began.steps:
        facts.append(("training", f"{began.steps:,} steps, {began.flops:.3g} FLOPs"))
        if config["evaluate"]["select"] == "best":
            facts.append(("weights", "the best on validation data, whose numbers are too good for that reason"))
    return facts


def lost(folder: FinetuningFolder, seed: int) -> list[tuple[str, str]]:
    """Return what the rows lack of the examples: titles, and the shares of each split. Raises CheckpointError."""
    results, metrics = folder.results(seed), folder.seed(seed).provenance().metrics
    return [
        (metrics[name].title or name, ", ".join(f"{split} {value:.1%}" for split, value in shares.items()))
        for name, shares in (results.lost if results else {}).items()
        if name in metrics
    ]


def _shown(table: dict[str, list[Row]], seeds: list[int]) -> int:
    """Return the seed whose tables and errors are shown: the one nearest to the median of the leading metric."""
    values = next((rows[0].values for rows in table.values() if rows and rows[0].values), None)
    if values is None:
        return seeds[0] if seeds else 0
    middle = median(values.values())
    return min(values, key=lambda seed: abs(values[seed] - middle))


def _curve(folder: FinetuningFolder, table: dict[str, list[Row]]) -> tuple[str, str] | None:
    """Return (title, SVG) of the leading metric on validation data over training, if it was evaluated twice."""
    rows = table.get("validation")
    if not rows:
        return None
    name = rows[0].name
    lines = {seed: points(folder.seed(seed).records(), "validation", name) for seed in rows[0].values}
    if all(len(line) < 2 for line in lines.values()):
        return None
    metric = titled(folder.seed(next(iter(lines))).provenance().metrics)[name]
    with drawing(5.2, 3.2) as figure:
        axes = figure.subplots()
        for number, (seed, line) in enumerate(lines.items()):
            axes.plot(*zip(*line, strict=True), markersize=4, label=f"seed {seed}", **look(number))
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.legend(
            frameon=False, ncols=5, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0,
            columnspacing=1, handlelength=1.2, handletextpad=0.5,
        )  # fmt: skip
        return heading(metric), svg(figure, name, heading(metric))


def _tables(folder: FinetuningFolder, seed: int) -> list[tuple[str, dict[str, Any]]]:
    results = folder.results(seed)
    return [(split, table) for split, each in results.splits.items() for table in each.tables] if results else []


def _errors(folder: FinetuningFolder, seed: int, most: int) -> tuple[str, list[list[tuple[str, str]]]]:
    """Return the first split that has wrong predictions, and these, the most certain first."""
    results = folder.results(seed)
    for split in results.splits if results else []:
        wrong = [each for each in folder.predictions(seed, split) if each.get("correct") is False]
        if wrong:
            wrong.sort(key=lambda each: -each.get("certainty", 0.0))
            return split, [
                [(key, _brief(value)) for key, value in each.items() if key != "correct"] for each in wrong[:most]
            ]
    return "", []


def _brief(value: Any) -> str:
    if not isinstance(value, str):
        value = f"{value:.3f}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
    text: str = value
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
