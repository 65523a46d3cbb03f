"""report.html of a run: one self-contained page from its directory alone, which loads nothing."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from electra_lab.analysis.findings import advice, declared, findings, heading, own_task, verdicts
from electra_lab.analysis.records import Records, last_evaluation, last_number, points, training_seconds
from electra_lab.presentation.charts import SERIES, SOFT, drawing, render, svg
from electra_lab.presentation.data_summary import compute, data_facts
from electra_lab.storage.files import read_as, read_text
from electra_lab.storage.finetuning_folder import config_of
from electra_lab.storage.provenance import Provenance
from electra_lab.storage.run_directory import RunDirectory
from registry import Metric
from registry.errors import CheckpointError

CURVES = {"train": "training", "validation": "validation"}  # the name of each split in a legend
Lines = Mapping[str, list[tuple[int, float]]]  # by label, the steps and their values
LEAST_SPAN = 0.02  # of a vertical axis, relative to its values: smaller changes must not look like something


class Token(BaseModel):
    """A token as the discriminator saw it, what stood there, and the probability that it was replaced."""

    token: str
    original: str
    replaced: bool
    probability: float


def write_report(directory: RunDirectory) -> Path:
    """Write report.html; the same directory gives the same bytes. Raises CheckpointError."""
    records, path, provenance = directory.records(), directory.path, directory.provenance()
    directory.refuse_other_format(provenance)
    last = last_evaluation(records)
    name = config_of(path / "config.yaml").get("name")
    if not isinstance(name, str):
        raise CheckpointError(f"{path / 'config.yaml'}: is damaged: it has no name.")
    metrics, judged = declared(provenance.metrics), verdicts(last, provenance) if last else []
    written: dict[str, Any] = directory.read_json("provenance.json")
    page = render(
        "run.html.j2",
        name=name,
        folder=path.name,
        started=provenance.started,
        verdicts=judged,
        advice=advice(judged),
        facts=_facts(records, provenance),
        last=last,
        findings=findings(last, metrics) if last else [],
        own_task=own_task(last, metrics) if last else "",
        examples=examples_of(directory),
        curves=_curves(records, metrics),
        config=read_text(path / "config.yaml"),
        provenance=json.dumps({k: v for k, v in written.items() if k != "config"}, indent=1),  # the config is above
    )
    directory.write("report.html", page)
    return path / "report.html"


def _facts(records: Records, provenance: Provenance) -> list[tuple[str, str]]:
    """Return the facts at the top of the page: what was trained, where, how long."""
    parameters = {key: value for key, value in provenance.parameters.items() if key in ("generator", "discriminator")}
    environment, seconds = provenance.environment, training_seconds(records)
    tokens = last_number(records, "train", "tokens")
    done = max((record["step"] for record in records), default=0)
    facts = [
        ("parameters", ", ".join(f"{key} {value:,}" for key, value in parameters.items())),
        ("device", f"{environment.device}, {environment.precision}, threads: {environment.threads}"),
        ("steps", f"{done:,} of {provenance.steps:,}"),
        *provenance.changed,
        ("compute", compute(provenance.flops, provenance.paper_flops)),
    ]
    if tokens:
        facts.append(("tokens", f"{tokens:,.0f}"))
    if seconds and tokens:
        facts.append(("time", f"{seconds:,.0f} s of training, {tokens / seconds:,.0f} tokens/s"))
    read = {split: last_number(records, split, "tokens") for split in ("validation", "test")}
    if any(read.values()):
        facts.append(("evaluation", ", ".join(f"{split} {n:,.0f} tokens" for split, n in read.items() if n)))
    return [*facts, *data_facts(provenance.data)]


def examples_of(directory: RunDirectory) -> list[list[Token]]:
    """Return the test rows that a run shows. Raises CheckpointError."""
    file = directory.path / "examples.json"
    return read_as(list[list[Token]], file) if file.is_file() else []


def _curves(records: Records, metrics: Mapping[str, Metric]) -> list[tuple[str, str]]:
    """Return (title, SVG) for each charted metric that was recorded more than once."""
    curves = []
    for name, metric in metrics.items():
        lines = {label: points(records, split, name) for split, label in CURVES.items()}
        if metric.chart and any(len(line) > 1 for line in lines.values()):
            baselines = {metrics[each].title: points(records, "validation", each) for each in metric.baselines}
            curves.append((heading(metric), _draw(name, heading(metric), lines, baselines)))
    return curves


def _draw(name: str, title: str, lines: Lines, baselines: Lines) -> str:
    with drawing(5.2, 3.2) as figure:
        axes = figure.subplots()
        styles: list[dict[str, Any]] = [{"color": colour} for colour in SERIES[: len(lines)]]
        styles += [{"color": SOFT, "linestyle": ("--", ":", "-.")[i % 3]} for i in range(len(baselines))]
        for (label, line), style in zip([*lines.items(), *baselines.items()], styles, strict=True):
            if line:
                style["marker"] = "o" if len(line) < 20 else None
                axes.plot(*zip(*line, strict=True), markersize=4, label=label, **style)
        values = [value for line in (*lines.values(), *baselines.values()) for _, value in line]
        middle, least = (max(values) + min(values)) / 2, LEAST_SPAN * max(map(abs, values))
        if max(values) - min(values) < least:
            axes.set_ylim(middle - least / 2, middle + least / 2)
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        # Above the curves, which it would hide inside.
        axes.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0)
        return svg(figure, name, title)
