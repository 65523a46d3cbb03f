"""The findings of a run in words."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from electra_lab.analysis.findings import Judgement, Level, Skill, judgements, measured, titled
from electra_lab.presentation.text import thousandths
from electra_lab.storage.provenance import Provenance
from registry import Metric
from registry.errors import guide

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
    """Return which numbers compare runs, if some of an evaluation do not."""
    return OWN_TASK if any(name in record and not metric.comparable for name, metric in metrics.items()) else ""


def advice(judged: Iterable[Verdict]) -> str:
    """Return where to look if anything was not learned."""
    return "" if all(verdict.learned for verdict in judged) else OWN_TEXT


def heading(metric: Metric) -> str:
    """Return the title of a metric's chart."""
    title = metric.title[:1].upper() + metric.title[1:]
    return f"{title}, {metric.unit}" if metric.unit else title


def findings(record: Mapping[str, Any], metrics: Mapping[str, Metric]) -> list[Finding]:
    """Return the metrics of an evaluation; baselines are part of a meaning."""
    known = titled(metrics)
    findings = []
    for name, metric in measured(record, metrics).items():
        meaning = f"{metric.summary}, in {metric.unit}" if metric.unit else metric.summary
        baselines = [base for base in metric.baselines if base in record]
        if baselines:
            meaning += "; " + ", ".join(f"{known[base].title} {thousandths(record[base])}" for base in baselines)
        if not metric.comparable:
            meaning += "; on its own task"
        findings.append(Finding(metric.title, record[name], meaning))
    return findings
