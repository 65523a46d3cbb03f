"""The results of a run from its directory alone: its findings in words, for the terminal, and report.html."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from electra_lab.analysis.records import (
    Judgement,
    Level,
    Records,
    Skill,
    judgements,
    last_evaluation,
    last_number,
    measured,
    of_split,
    points,
    titled,
    training_seconds,
)
from electra_lab.presentation import profile
from electra_lab.presentation.pages import Chart, Unfinished, curves, render, training_charts
from electra_lab.presentation.text import Table, compute, data_facts, device, epochs, thousandths
from electra_lab.storage.checkpoint import checkpoint_path
from electra_lab.storage.files import config_of, read_as, read_text
from electra_lab.storage.provenance import Provenance
from electra_lab.storage.records import Profile
from electra_lab.storage.run_directory import RunDirectory
from registry import BatchSizes, Metric
from registry.errors import CheckpointError, guide

CLAIMS: dict[Level, str] = {
    "learned": "The {} has learned {}",
    "begun": "The {} has begun to learn {}",
    "hardly": "The {} has hardly learned {}",
    "not": "The {} has not learned {}",
    "unseen": "The {} has not learned {}, as far as this text can tell",
    "unknown": "It is not known whether the {} has learned {}",
}
SKILLS: dict[Skill, tuple[str, str]] = {  # a description of each skill, and the metric that shows it
    "detection": ("to detect replacements better than its baselines", "AUC"),
    "tokens": ("more than word frequencies", "loss at [MASK]"),
    "task": ("more than its baselines", "{}"),
}
OWN_TASK = (
    "Numbers on a run's own task depend on the replacements that it makes: a better number need not mean a better "
    f"model. Compare runs by the other metrics, and discriminators by a task that is the same for all "
    f"({guide('ablations')})."
)
OWN_TEXT = f"{guide('own-text')} says what to change for your own text, and how to see early that nothing is learned."
CURVES = {"train": "training", "validation": "validation"}  # the name of each split in a legend


@dataclass(frozen=True)
class Finding:
    """A metric's value, and the sentence that says how to read it."""

    title: str
    value: float | None
    meaning: str


@dataclass(frozen=True)
class Verdict:
    """A sentence on whether a network has learned a skill, and the facts that show it."""

    learned: bool
    claim: str
    facts: str

    def __str__(self) -> str:
        return f"{self.claim}: {self.facts}."


def verdicts(record: Mapping[str, Any], provenance: Provenance) -> list[Verdict]:
    """Return a verdict on each skill of a run's networks by an evaluation, failures first."""
    metrics = titled(provenance.metrics)
    return [verdict(judged, record, metrics) for judged in judgements(record, provenance)]


def verdict(judgement: Judgement, record: Mapping[str, Any], metrics: Mapping[str, Metric]) -> Verdict:
    """Return a judgement in words."""
    skill, title = SKILLS[judgement.skill]
    title, baseline = title.format(metrics[judgement.metric].title), metrics[judgement.baseline]
    gain = f"{judgement.metric}_gain"
    facts = f"{title} {record[judgement.metric]:.3f} against {record[judgement.baseline]:.3f} ({baseline.title}); "
    facts += f"gain {record[gain]:+.3f}"
    if judgement.level in ("hardly", "begun"):
        facts += f" ({judgement.share:.1%} of the way to {judgement.perfect})"
    low, high = record.get(f"{gain}_low"), record.get(f"{gain}_high")
    if low is None or high is None:
        facts += ", too few documents for an interval"
    else:
        units = next(unit for unit in ("rows", "examples", "documents") if f"{gain}_{unit}" in record)
        facts += f", 95% interval {low:+.3f} to {high:+.3f} over {record[f'{gain}_{units}']:,} {units}"
    recall = record.get("discriminator_recall")
    if judgement.skill == "detection" and recall is not None:
        facts += f"; at a threshold of 0.5 it finds {recall:.1%} of the replacements"
    return Verdict(judgement.learned, CLAIMS[judgement.level].format(judgement.network, skill), facts)


def own_task(record: Mapping[str, Any], metrics: Mapping[str, Metric]) -> str:
    """Return a note on the numbers that compare runs, if some of an evaluation do not."""
    return OWN_TASK if any(name in record and not metric.comparable for name, metric in metrics.items()) else ""


def advice(judged: Iterable[Verdict]) -> str:
    """Return the address of a guide if anything was not learned."""
    return "" if all(verdict.learned for verdict in judged) else OWN_TEXT


def heading(metric: Metric) -> str:
    """Return the title of a metric's chart."""
    title = metric.title[:1].upper() + metric.title[1:]
    return f"{title}, {metric.unit}" if metric.unit else title


def findings(record: Mapping[str, Any], metrics: Mapping[str, Metric]) -> list[Finding]:
    """Return the metrics of an evaluation; baselines are part of a meaning."""
    declared = titled(metrics)
    findings = []
    for name, metric in measured(record, metrics).items():
        meaning = f"{metric.summary}, in {metric.unit}" if metric.unit else metric.summary
        baselines = [base for base in metric.baselines if base in record]
        if baselines:
            meaning += "; " + ", ".join(f"{declared[base].title} {thousandths(record[base])}" for base in baselines)
        if not metric.comparable:
            meaning += "; not comparable between runs"
        findings.append(Finding(metric.title, record[name], meaning))
    return findings


class Token(BaseModel):
    """A token as the discriminator saw it, the original token, and the probability that it was replaced."""

    token: str
    original: str
    replaced: bool
    probability: float


def write_report(directory: RunDirectory, unfinished: Unfinished | None = None) -> Path:
    """Write report.html; the same directory gives the same bytes. Raises CheckpointError.

    unfinished  the state of a run that is not at its end, as the run itself knows it
    """
    records, path, provenance = directory.records(), directory.path, directory.provenance()
    directory.refuse_other_format(provenance)
    last = last_evaluation(records)
    name = config_of(path / "config.yaml").get("name")
    if not isinstance(name, str):
        raise CheckpointError(f"{path / 'config.yaml'}: is damaged: it has no name.")
    directory.refuse_other_config()
    metrics, judged = titled(provenance.metrics), verdicts(last, provenance) if last else []
    written: dict[str, Any] = directory.read_json("provenance.json")
    page = render(
        "run.html.j2",
        title=name,
        unfinished=unfinished,
        folder=path.name,
        started=provenance.started,
        verdicts=judged,
        advice=advice(judged),
        facts=_facts(records, provenance),
        last=last,
        results=results_table(last or {}, metrics),
        own_task=own_task(last or {}, metrics),
        examples=examples_of(directory),
        profile=profile_of(path),
        before=before_and_after(records, metrics),
        curves=_curves(records, metrics),
        course=training_charts({"training": records}),
        config=read_text(path / "config.yaml"),
        provenance=json.dumps({k: v for k, v in written.items() if k != "config"}, indent=1),  # the config is above
    )
    directory.write("report.html", page)
    return path / "report.html"


def results_table(record: Mapping[str, Any], metrics: Mapping[str, Metric]) -> Table:
    """Return the metrics of an evaluation with their meanings."""
    rows = [[finding.title, thousandths(finding.value), finding.meaning] for finding in findings(record, metrics)]
    return Table("Results", ["metric", "value", "meaning"], rows, prose=["meaning"])


def before_and_after(records: Records, metrics: Mapping[str, Metric]) -> Table | None:
    """Compare the last validation with that before the first step, which runs with loaded weights have."""
    validated = of_split(records, "validation")
    if len(validated) < 2 or validated[0]["step"] > 0:
        return None
    first, last, rows = validated[0], validated[-1], list[list[str]]()
    for name, metric in measured(last, metrics).items():
        before, after = first.get(name), last[name]
        change = "-" if before is None or after is None else f"{after - before:+.3f}"
        rows.append([metric.title, thousandths(before), thousandths(after), change])
    return Table("Before and after, on validation text", ["metric", "step 0", f"step {last['step']:,}", "change"], rows)


def closing(directory: RunDirectory, report: Path, seconds: float | None) -> str:
    """Summarize the findings, with the path of the page; `seconds` is the time of all steps, None if unknown."""
    records, provenance = directory.records(), directory.provenance()
    last = last_evaluation(records)
    lines = ["", f"after step {last['step']:,}, on {last['split']} text" if last else "no evaluation"]
    judged = verdicts(last, provenance) if last else []
    if judged:
        lines += [f"  {verdict}" for verdict in judged]
        lines += [f"  {advice(judged)}", ""] if advice(judged) else [""]
    table = results_table(last or {}, provenance.metrics)
    if table.rows:
        lines.append(table.text(header=False))
    # How it compares with earlier ones, and with other runs.
    if before := before_and_after(records, provenance.metrics):
        lines += ["", before.title, before.text()]
    if warning := own_task(last or {}, provenance.metrics):
        lines.append(f"  {warning}")
    if best := directory.best_checkpoint():
        path = checkpoint_path(directory.checkpoints, best.step)
        lines.append(f"  best checkpoint by {best.metric} {best.value:.4f}: {path} (use --best)")
    if examples := examples_of(directory):
        lines += ["", "test text as the discriminator saw it: [original > replacement, probability of replaced];",
                  "a number in parentheses marks a false alarm"]  # fmt: skip
        lines += [f"  {excerpt(tokens)}" for tokens in examples]
    time = f"trained in {seconds:,.0f} s; " if seconds else ""
    return "\n".join([*lines, "", f"{time}report {report}"])


def excerpt(tokens: Sequence[Token]) -> str:
    """Return an example as plain text."""
    words: list[str] = []
    for token in tokens:
        word, glued = token.token.removeprefix("##"), token.token.startswith("##")
        if token.replaced:
            word, glued = f"[{token.original} > {token.token}, {token.probability:.2f}]", False
        elif token.probability > 0.5:
            word = f"{word} ({token.probability:.2f})"
        words.append(word if glued else f" {word}")
    return "".join(words).strip()


def _facts(records: Records, provenance: Provenance) -> list[tuple[str, str]]:
    """Return the facts at the top of the page: networks, machine, duration, data."""
    parameters = provenance.parameters
    sizes = [f"{name} {parameters[name]:,}" for name in parameters if name in ("generator", "discriminator")]
    seconds, tokens = training_seconds(records), last_number(records, "train", "tokens")
    done = max((record["step"] for record in records), default=0)
    facts = [
        ("parameters", ", ".join(sizes)),
        ("device", device(provenance.environment)),
        ("steps", f"{done:,} of {provenance.steps:,}"),
        *_epochs(provenance),
        *provenance.changed,
        ("compute", compute(provenance.flops, provenance.paper_flops)),
    ]
    if tokens:
        facts.append(("tokens", f"{tokens:,.0f} with padding"))
    if seconds and tokens:
        facts.append(("time", f"{seconds:,.0f} s of training, {tokens / seconds:,.0f} tokens/s"))
    read = {split: last_number(records, split, "tokens") for split in ("validation", "test")}
    if any(read.values()):
        facts.append(
            ("evaluation", ", ".join(f"{split} {n:,.0f} tokens with padding" for split, n in read.items() if n))
        )
    return [*facts, *data_facts(provenance.data)]


def _epochs(provenance: Provenance) -> Iterator[tuple[str, str]]:
    """Yield the number of epochs, if the number of rows is known."""
    train = provenance.config.get("train", {})
    if train.get("batch_size") and provenance.data.rows:
        yield "epochs", epochs(BatchSizes.of(train).before(provenance.steps), provenance.data.rows)


def profile_of(path: Path) -> tuple[Table, Chart] | None:
    """Return the profile of a run as a table and a chart. Raises CheckpointError."""
    file = path / "profile.json"
    if not file.is_file():
        return None
    read = read_as(Profile, file, "Remove it.")
    return profile.table(read), profile.chart(read)


def examples_of(directory: RunDirectory) -> list[list[Token]]:
    """Return the test rows that a run shows. Raises CheckpointError."""
    file = directory.path / "examples.json"
    return read_as(list[list[Token]], file) if file.is_file() else []


def _curves(records: Records, metrics: Mapping[str, Metric]) -> list[Chart]:
    """Return a chart for each charted metric that was recorded more than once."""
    drawn = []
    for name, metric in metrics.items():
        lines = {label: points(records, split, name) for split, label in CURVES.items()}
        if metric.chart and any(len(line) > 1 for line in lines.values()):
            baselines = {metrics[base].title: points(records, "validation", base) for base in metric.baselines}
            drawn.append(curves(name, heading(metric), lines, baselines))
    return drawn
