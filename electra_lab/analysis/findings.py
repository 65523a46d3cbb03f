"""The findings of a run: a verdict on its last evaluation, and the metrics of it next to their baselines."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from electra_lab.storage.provenance import Provenance
from registry import Metric

# What a gain over the baselines shows, by metric: which network, what it has learned, the name of the number.
_SKILLS = {
    "discriminator_auc": ("discriminator", "to detect replacements better than its baselines", "AUC"),
    "generator_mask_loss": ("generator", "more than word frequencies", "loss at [MASK]"),
    "discriminator_token_mask_loss": ("discriminator", "more than word frequencies", "loss at [MASK]"),
}
# A gain as a share of the way from the better baseline to perfection: below the first number hardly anything has been
# learned, below the second a little. From an AUC of 0.5 on, these are 0.556 and 0.638, Cohen's (1988) small and medium
# effects, d = 0.2 and 0.5. No loss comes near 0, as text has an entropy; small networks save a tenth in minutes.
GRADES = {"AUC": (0.11, 0.28), "loss at [MASK]": (0.05, 0.10)}
LEAST_RECALL = 0.05  # at threshold 0.5; with less, a discriminator has not learned to detect, whatever its AUC
LEARNED, BEGUN, HARDLY, NOT = (
    f"The {{}} has {degree} {{}}" for degree in ("learned", "begun to learn", "hardly learned", "not learned")
)
OWN_TASK = (
    "Detection is of replacements by the run's own generator, and a better generator makes it harder. Compare runs, or "
    "steps of a run, by the loss at [MASK]; discriminators by a task that is the same for all (docs/ablations.md)."
)
UNSEEN, UNKNOWN = f"{NOT}, as far as this text can tell", "It is not known whether the {} has learned {}"
OWN_TEXT = "docs/own-text.md says what to change for your own text, and how to see early that nothing is learned."


@dataclass(frozen=True)
class Finding:
    """A metric's value, and the sentence that says how to read it."""

    title: str
    value: float | None
    meaning: str


@dataclass(frozen=True)
class Verdict:
    """What a network has learned or not, and the facts that show it."""

    learned: bool
    claim: str
    facts: str

    def __str__(self) -> str:
        return f"{self.claim}: {self.facts}."


def verdicts(record: Mapping[str, Any], provenance: Provenance) -> list[Verdict]:
    """Return what the networks of a run have learned by an evaluation, failures first.

    Empty if it has no gains, as of an objective with metrics of its own or of an older version. A generator without
    parameters is not judged.
    """
    metrics, found = declared(provenance.metrics), []
    for name, (network, skill, title) in _SKILLS.items():
        baselines = [each for each in metrics.get(name, Metric()).baselines if record.get(each) is not None]
        gain = record.get(f"{name}_gain")
        if gain is None or not baselines or not provenance.parameters.get(network, 1):
            continue
        perfect, best = (1, max) if metrics[name].higher_is_better else (0, min)
        baseline = best(baselines, key=lambda each: record[each])
        low, high = record.get(f"{name}_gain_low"), record.get(f"{name}_gain_high")
        room = abs(perfect - record[baseline]) or 1.0
        recall = record.get("discriminator_recall") if title == "AUC" else None
        claim = _claim(gain, low, high, *(share * room for share in GRADES[title]))
        claim = BEGUN if claim == LEARNED and recall is not None and recall < LEAST_RECALL else claim
        facts = (
            f"{title} {record[name]:.3f} against {record[baseline]:.3f} ({metrics[baseline].title}); gain {gain:+.3f}"
        )
        if claim in (HARDLY, BEGUN):
            facts += f" ({gain / room:.1%} of the way to {perfect})"
        if low is None or high is None:
            facts += ", too few documents for an interval"
        else:
            unit = "rows" if f"{name}_gain_rows" in record else "documents"
            facts += f", 95% interval {low:+.3f} to {high:+.3f} over {record[f'{name}_gain_{unit}']:,} {unit}"
        facts += f"; at a threshold of 0.5 it finds {recall:.1%} of the replacements" if recall is not None else ""
        found.append(Verdict(claim in (LEARNED, BEGUN), claim.format(network, skill), facts))
    return sorted(found, key=lambda each: each.learned)


def _claim(gain: float, low: float | None, high: float | None, little: float, much: float) -> str:
    """Choose the sentence for a gain with its interval: one around zero shows nothing if it is wide."""
    if low is None or high is None:
        return UNKNOWN
    if low > 0:
        return LEARNED if gain >= much else BEGUN if gain >= little else HARDLY
    return NOT if high <= 0 else UNSEEN if high < little else UNKNOWN


def own_task(record: Mapping[str, Any], metrics: Mapping[str, Metric]) -> str:
    """Return which numbers compare runs, if some of an evaluation do not."""
    return OWN_TASK if any(not metric.comparable and name in record for name, metric in metrics.items()) else ""


def advice(judged: Iterable[Verdict]) -> str:
    """Return where to look if anything was not learned."""
    return "" if all(each.learned for each in judged) else OWN_TEXT


def declared(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Return the metrics that a run declared; those of pre-training for a run of an older version, which did not."""
    if metrics:
        return titled(metrics)
    from electra_lab.metrics import PRETRAINING

    return titled(PRETRAINING)


def titled(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Return the metrics and their baselines, each with a title: its name if it declares none, or is not declared."""
    baselines = (name for metric in metrics.values() for name in metric.baselines)
    known = {**metrics, **{name: Metric() for name in baselines if name not in metrics}}
    return {name: replace(metric, title=metric.title or name) for name, metric in known.items()}


def heading(metric: Metric) -> str:
    """Return the title of a metric's chart."""
    return f"{metric.title[:1].upper()}{metric.title[1:]}{f', {metric.unit}' if metric.unit else ''}"


def findings(record: Mapping[str, Any], metrics: Mapping[str, Metric]) -> list[Finding]:
    """Return the metrics of an evaluation in the order of their declaration; baselines are part of a meaning."""
    metrics = declared(metrics)
    baselines = {name for metric in metrics.values() for name in metric.baselines}
    found = []
    for name, metric in metrics.items():
        if name in record and name not in baselines:
            unit = f", in {metric.unit}" if metric.unit else ""
            known = [each for each in metric.baselines if each in record]
            beside = ", ".join(f"{metrics[each].title} {number(record[each]).strip()}" for each in known)
            own = "; on its own task" if not metric.comparable else ""
            meaning = f"{metric.summary}{unit}{f'; {beside}' if beside else ''}{own}"
            found.append(Finding(metric.title, record[name], meaning))
    return found


def number(value: float | None) -> str:
    return f"{value:7.3f}" if value is not None else "      -"
