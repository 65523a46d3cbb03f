"""The results of a fine-tuning, on the terminal and as report.html, from its folder alone."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from electra_lab.analysis.intervals import difference, estimate
from electra_lab.analysis.records import judge, points, titled
from electra_lab.presentation.pages import Chart, Unfinished, curves, render, training_charts
from electra_lab.presentation.run_page import Verdict, heading, verdict
from electra_lab.presentation.text import Table, counted, device, thousandths
from electra_lab.storage.files import config_of, read_text
from electra_lab.storage.finetuning_folder import FinetuningFolder, is_finetuning
from registry import Metric
from registry.errors import CheckpointError, command

LONGEST_TEXT = 400  # characters of an example's fields that are shown
MOST_ROWS = 200  # of a table
MOST_WORDS = 200  # of a tagged sentence
TAGGED = ("words", "prediction", "label")  # fields of a tagged sentence
FROM_RANDOM = "the same from random weights"
RANDOM = "random"  # folder of the same fine-tuning from random weights, within that of a fine-tuning
MAY_DIFFER = {"init", "name", "seeds", "trackers", "imports", "checkpoint"}  # keys between them
LOSS = {"loss": "Loss on training data"}
OVER_SEEDS = ["median", "mean", "95% interval", "SD"]


@dataclass(frozen=True)
class Row:
    """A metric on a split over the seeds. The interval is Student's t."""

    name: str
    metric: Metric
    values: dict[int, float]

    @property
    def numbers(self) -> dict[str, Any]:
        """Its entry in results.json."""
        values = [*self.values.values()]
        mean = estimate(values, self.metric.bounds)
        return {
            "median": median(values) if values else None,
            "mean": mean.mean,
            "sd": stdev(values) if len(values) > 1 else None,
            "low": mean.low,
            "high": mean.high,
            "values": self.values,
        }

    def texts(self, seeds: Sequence[int]) -> list[str]:
        """Return the number of each seed, after those of `OVER_SEEDS` if there are several."""
        by_seed = [thousandths(self.values.get(seed)) for seed in seeds]
        if len(seeds) < 2:
            return by_seed
        over = self.numbers
        bounds = "-" if over["low"] is None else f"{over['low']:.3f} to {over['high']:.3f}"
        return [thousandths(over["median"]), thousandths(over["mean"]), bounds, thousandths(over["sd"]), *by_seed]


Results = dict[str, list[Row]]  # by split
# A wrong prediction: its fields and, of a tagged sentence, each word with its predicted and its right tag.
Wrong = tuple[list[tuple[str, str]], list[tuple[str, str, str]]]


def read_results(folder: FinetuningFolder) -> tuple[list[int], Results]:
    """Return the finished seeds; and the metrics of each held-out split over them, the leading one first.

    A split without labels has no metrics. Raises CheckpointError.
    """
    seeds = [seed for seed in folder.seeds() if folder.results(seed)]
    first = folder.results(seeds[0]) if seeds else None
    if first is None:
        return seeds, {}
    metrics = folder.seed(seeds[0]).provenance().metrics
    results = Results()
    for split, of_split in first.splits.items():
        names = [name for name in metrics if name in of_split.metrics]
        results[split] = [Row(name, metrics[name], folder.values(split, name)) for name in names]
    return seeds, results


def verdicts(folder: FinetuningFolder, seeds: Sequence[int], results: Results) -> list[Verdict]:
    """Return a verdict on whether the model has learned its task, by the leading metric on the first split with labels.

    The interval of its gain is that over the seeds, and never narrower than that of no correlation over the examples.
    """
    split = next((split for split, rows in results.items() if rows and rows[0].values), None)
    if split is None:
        return []
    by_name = {row.name: row for row in results[split]}
    metrics, leading = titled({name: row.metric for name, row in by_name.items()}), results[split][0]
    record: dict[str, Any] = {name: fmean(row.values.values()) for name, row in by_name.items() if row.values}
    if baselines := [by_name[name] for name in leading.metric.baselines if name in record]:
        sign, (low, high) = (1 if leading.metric.higher_is_better else -1), leading.metric.bounds or (-inf, inf)
        better = max(baselines, key=lambda row: sign * record[row.name])
        both = [(value, better.values[seed]) for seed, value in leading.values.items() if seed in better.values]
        gains = [sign * (value - baseline) for value, baseline in both]
        examples = folder.seed(seeds[0]).provenance().data.documents[split]
        gain, half = fmean(gains), max(estimate(gains).half or 0.0, 1.96 / examples**0.5)
        # No gain is larger than the way from the baseline to a bound of the metric.
        least, most = sorted(sign * (bound - record[better.name]) for bound in (low, high))
        bounds = {"": gain, "_low": max(gain - half, least), "_high": min(gain + half, most), "_examples": examples}
        record |= {f"{leading.name}_gain{part}": value for part, value in bounds.items()}
    judged = judge(record, metrics, leading.name, "model", "task")
    return [verdict(judged, record, metrics)] if judged else []


def results_table(split: str, rows: Sequence[Row], seeds: Sequence[int]) -> Table:
    columns = ["metric", *(OVER_SEEDS if len(seeds) > 1 else []), *(f"seed {seed}" for seed in seeds), "meaning"]
    cells = [[row.metric.title or row.name, *row.texts(seeds), row.metric.summary] for row in rows]
    return Table(f"Results on {split}", columns, cells, prose=["meaning"])


def write_report(folder: FinetuningFolder, unfinished: Unfinished | None = None) -> Path:
    """Write report.html and results.json, the numbers over all seeds. Raises CheckpointError.

    unfinished  the state of a fine-tuning that is not at its end, which has no results.json yet
    """
    file = folder.path / "finetuning.yaml"
    config = config_of(file)
    seeds, results = read_results(folder)
    numbers = dict[str, dict[str, Any]]()
    for split, rows in results.items():
        numbers[split] = {row.name: row.numbers for row in rows}
    if unfinished is None:
        folder.write_json("results.json", numbers)
    shown = _shown(results, seeds)
    try:
        facts, name, most = _facts(folder, config, seeds), config["name"], config["evaluate"]["errors"]
    except (KeyError, TypeError):
        raise CheckpointError(f"{file}: is damaged.") from None
    split, errors = _errors(folder, shown, most)
    place, baselines = folder.path.name, _baselines(folder, config, results)
    page = render(
        "finetuning.html.j2",
        title=name,
        unfinished=unfinished,
        folder=folder.path.name,
        facts=facts,
        verdicts=verdicts(folder, seeds, results),
        results={split: results_table(split, rows, seeds) for split, rows in results.items()},
        baselines=baselines,
        from_random=[
            command("finetune", f"{place}/finetuning.yaml", "--set", "init=random", "--out", f"{place}/{RANDOM}"),
            command("report", place),
        ],
        with_random=any(FROM_RANDOM in table.text() for table in baselines.values()),
        curve=_curve(folder, results),
        course=training_charts({f"seed {seed}": folder.seed(seed).records() for seed in folder.seeds()}, LOSS),
        shown=shown,
        of_seed=f"seed {shown}{' (the nearest to the median)' * (len(seeds) > 1)}",
        tables=_tables(folder, shown),
        errors_split=split,
        errors=errors,
        config=read_text(file),
        provenance=json.dumps(folder.seed(shown).read_json("provenance.json"), indent=1) if seeds else "",
    )
    folder.write("report.html", page)
    return folder.path / "report.html"


def _baselines(folder: FinetuningFolder, config: Mapping[str, Any], results: Results) -> dict[str, Table]:
    """Compare the model with constant answers and, if there is such a fine-tuning, with random weights; by split.

    The intervals are Student's t of the paired differences over the seeds.
    """
    tables, random = dict[str, Table](), FinetuningFolder(folder.path / RANDOM)
    others = Results()
    if is_finetuning(random.path):
        other = config_of(random.path / "finetuning.yaml")
        if _decisive(other, random.path) == _decisive(config, folder.path) and other.get("init") == "random":
            others = read_results(random)[1]
    for split, rows in results.items():
        by_name = {row.name: row for row in rows if row.values}
        from_random = {row.name: row for row in others.get(split, []) if row.values}
        cells = []
        for name, row in by_name.items():
            compared = [by_name[baseline] for baseline in row.metric.baselines if baseline in by_name]
            compared += [from_random[name]] if name in from_random and (compared or row is rows[0]) else []
            for baseline in compared:
                gain = difference(row.values, baseline.values)
                bounds = "-" if gain.low is None else f"{gain.low:+.3f} to {gain.high:+.3f}"
                title = FROM_RANDOM if baseline.name == name else baseline.metric.summary
                mean = "-" if gain.mean is None else f"{gain.mean:+.3f}"
                means = [thousandths(fmean(of.values.values())) for of in (row, baseline)]
                cells.append([row.metric.title or name, title or baseline.metric.title, *means, mean, bounds])
        if cells:
            columns = ["metric", "baseline", "model", "of the baseline", "difference", "95% interval"]
            tables[split] = Table(f"Baselines on {split}", columns, cells, prose=["baseline"])
    return tables


def _decisive(config: Mapping[str, Any], folder: Path) -> Any:
    """Return the keys in which two fine-tunings must be equal. Paths relative to a folder become absolute."""
    return _absolute({key: value for key, value in config.items() if key not in MAY_DIFFER}, folder)


def _absolute(value: Any, folder: Path) -> Any:
    if isinstance(value, Mapping):
        return {key: _absolute(inner, folder) for key, inner in value.items()}
    if isinstance(value, list):
        return [_absolute(inner, folder) for inner in value]
    is_path = isinstance(value, str) and (value.startswith("../") or (folder / value).exists())
    return os.path.realpath(folder / value) if is_path else value


def closing(folder: FinetuningFolder, report: Path, seconds: float) -> str:
    """Summarize the results over the seeds, which trained for `seconds` in all."""
    seeds, results = read_results(folder)
    lines = [""]
    for split, rows in results.items():
        if rows:
            lines += [f"on {split}, {counted(len(seeds), 'seed')}", results_table(split, rows, seeds).text()]
        else:
            lines.append(f"on {split}: no labels")
    lines += [*map(str, verdicts(folder, seeds, results))]
    if seeds:
        lines += [f"{title}: {shares}" for title, shares in truncation(folder, seeds[0])]
    time = f"trained in {seconds:,.0f} s; " if seconds else ""
    return "\n".join([*lines, "", f"{time}report {report}"])


def _facts(folder: FinetuningFolder, config: Mapping[str, Any], seeds: Sequence[int]) -> list[tuple[str, str]]:
    if not seeds:
        return []
    began = folder.seed(seeds[0]).provenance()
    documents = ", ".join(f"{split} {number:,}" for split, number in began.data.documents.items())
    left_out = "".join(f"; {number:,} of {split} left out" for split, number in began.data.skipped.items())
    network = f"{config['network']} of " if began.steps else ""
    facts = [
        ("model", f"{network}{config['model']}, weights {config['init']}"),
        ("task", f"{config['task']['type']} on {config['dataset']['type']}"),
        ("examples", documents + left_out),
        ("parameters", ", ".join(f"{key} {value:,}" for key, value in began.parameters.items())),
        ("device", device(began.environment)),
    ]
    if absent := [str(seed) for seed in config["seeds"] if seed not in seeds]:
        noun = "seed" if len(absent) == 1 else "seeds"
        facts.append(("not finished", f"{noun} {', '.join(absent)}"))
    facts += truncation(folder, seeds[0])
    for seed in seeds:
        facts += [(title, f"seed {seed}, {text}") for title, text in folder.seed(seed).provenance().changed]
    if began.steps:
        facts.append(("training", f"{began.steps:,} steps, {began.flops:.3g} FLOPs"))
        if config["evaluate"]["select"] == "best":
            facts.append(("weights", "the best on validation data, whose numbers are too good for that reason"))
    return facts


def truncation(folder: FinetuningFolder, seed: int) -> list[tuple[str, str]]:
    """Return the shares of each split's examples that the rows lack, with titles. Raises CheckpointError."""
    results = folder.results(seed)
    return lost_shares(results.lost if results else {}, folder.seed(seed).provenance().metrics)


def lost_shares(lost: Mapping[str, Mapping[str, float]], metrics: Mapping[str, Metric]) -> list[tuple[str, str]]:
    """Return shares of lost examples, by metric and split, as facts."""
    facts = []
    for name, shares in lost.items():
        if name in metrics:
            text = ", ".join(f"{split} {value:.1%}" for split, value in shares.items())
            facts.append((metrics[name].title or name, text))
    return facts


def _shown(results: Results, seeds: Sequence[int]) -> int:
    """Return the seed whose tables and errors are shown: the one nearest to the median of the leading metric."""
    values = next((rows[0].values for rows in results.values() if rows and rows[0].values), None)
    if values is None:
        return seeds[0] if seeds else 0
    middle = median(values.values())
    return min(values, key=lambda seed: abs(values[seed] - middle))


def _curve(folder: FinetuningFolder, results: Results) -> Chart | None:
    """Draw the leading metric on validation data over training, if it was evaluated twice."""
    begun = folder.seeds()
    rows = results.get("validation", [])
    metrics = (
        {row.name: row.metric for row in rows} if results or not begun else folder.seed(begun[0]).provenance().metrics
    )
    if not metrics:
        return None
    name, metric = next(iter(metrics.items()))
    lines = {seed: points(folder.seed(seed).records(), "validation", name) for seed in begun}
    if all(len(line) < 2 for line in lines.values()):
        return None
    title = f"{heading(titled({name: metric})[name])} on validation data"
    return curves(name, title, {f"seed {seed}": line for seed, line in lines.items()}, {})


def _tables(folder: FinetuningFolder, seed: int) -> list[tuple[str, int, Table]]:
    """Return the tables of the task with their splits and numbers of rows, of which the first are shown."""
    results = folder.results(seed)
    splits = results.splits if results else {}
    tables = list[tuple[str, int, Table]]()
    for split, of_split in splits.items():
        for table in of_split.tables:
            rows = [[*map(_cell, row)] for row in table["rows"][:MOST_ROWS]]
            columns = table["header"]
            first = table["rows"][0] if table["rows"] else columns
            prose = [title for title, value in zip(columns, first, strict=False) if isinstance(value, str)]
            tables.append((split, len(table["rows"]), Table(table["title"], columns, rows, prose)))
    return tables


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _errors(folder: FinetuningFolder, seed: int, most: int) -> tuple[str, list[Wrong]]:
    """Return the first split that has wrong predictions, and these, the most certain first."""
    results = folder.results(seed)
    splits = results.splits if results else {}
    for split in splits:
        wrong = [answer for answer in folder.predictions(seed, split) if answer.get("correct") is False]
        if wrong:
            wrong.sort(key=lambda answer: -answer.get("certainty", 0.0))
            return split, [*map(_brief, wrong[:most])]
    return "", []


def _brief(answer: Mapping[str, Any]) -> Wrong:
    """Return a prediction in parts to be shown; long texts are cut."""
    facts, words = list[tuple[str, str]](), list[tuple[str, str, str]]()
    columns = [answer.get(name) for name in TAGGED]
    if all(isinstance(column, list) and len(column) == len(columns[0] or ()) for column in columns):
        words = [(str(word), str(tag), str(label)) for word, tag, label in zip(*columns, strict=True)]
    for key, value in answer.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        text = f"{value:.3f}" if isinstance(value, float) else text
        if key != "correct" and not (words and key in TAGGED):
            facts.append((key, text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"))
    return facts, words[:MOST_WORDS]
