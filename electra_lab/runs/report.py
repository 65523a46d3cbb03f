"""report.html: one self-contained page from a run directory alone; it opens from disk and loads nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from electra_lab.charts import SERIES, SOFT, drawing, render, svg
from electra_lab.runs.directory import RunDirectory
from electra_lab.runs.summary import findings
from registry.errors import CheckpointError

COLOURS = {"train": SERIES[0], "held_out": SERIES[1]}


def write_report(directory: RunDirectory) -> Path:
    """Write report.html; the same directory gives the same bytes. Raises CheckpointError."""
    records = directory.records()
    by_split = {split: [r for r in records if r["split"] == split] for split in COLOURS}
    last = by_split["held_out"][-1] if by_split["held_out"] else None
    path = directory.path
    config, provenance = (path / "config.yaml").read_text(encoding="utf-8"), directory.read_json("provenance.json")
    try:
        name, started = yaml.safe_load(config)["name"], provenance["started"]
    except (yaml.YAMLError, KeyError, TypeError):
        raise CheckpointError(f"{path}: config.yaml or provenance.json is damaged.") from None
    page = render(
        "electra_lab.runs",
        name=name,
        folder=path.name,
        config=config,
        provenance=json.dumps(provenance, indent=1),
        started=started,
        last=last,
        findings=findings(last) if last else [],
        examples=directory.read_json("examples.json") if (path / "examples.json").is_file() else [],
        curves=[(chart.title, _draw(by_split, chart)) for chart in _charts(last)],
    )
    directory.write("report.html", page)
    return path / "report.html"


@dataclass(frozen=True)
class Chart:
    """A metric over steps, and the baseline that it is read against."""

    title: str
    key: str
    baseline: str | None = None
    baseline_label: str = ""


def _charts(last: dict[str, Any] | None) -> list[Chart]:
    """Each loss, and the AUC."""
    charts = [
        Chart("Generator loss, nats", "generator_loss", "unigram_entropy", "word frequencies alone"),
        Chart("Generator loss at [MASK], nats", "generator_mask_loss", "unigram_mask_entropy", "word frequencies"),
        Chart("Discriminator loss, nats", "discriminator_loss"),
        Chart(
            "Token loss of the network under study, nats",
            "discriminator_token_loss",
            "unigram_entropy",
            "word frequencies alone",
        ),
        Chart("Discriminator AUC", "discriminator_auc", "unigram_auc", "rare-token detector"),
    ]
    return [chart for chart in charts if last is None or chart.key in last]


def _draw(by_split: dict[str, list[dict[str, Any]]], chart: Chart) -> str:
    """One chart as SVG text."""
    with drawing(5.2, 3.0) as figure:
        axes = figure.subplots()

        def line(split: str, key: str, **style: Any) -> None:
            points = [(r["step"], r[key]) for r in by_split[split] if r.get(key) is not None]
            if points:
                marker = "o" if len(points) < 20 else None
                axes.plot(*zip(*points, strict=True), marker=marker, markersize=4, **style)

        for split, colour in COLOURS.items():
            line(split, chart.key, color=colour, label=split.replace("_", " "))
        if chart.baseline:
            line("held_out", chart.baseline, color=SOFT, linestyle="--", label=chart.baseline_label)
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        if axes.lines:
            axes.legend(frameon=False)
        return svg(figure, chart.key, chart.title)
