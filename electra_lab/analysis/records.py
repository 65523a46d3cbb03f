"""The records of a run, and its findings: which skills of its networks the metrics of its last evaluation show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeGuard

from electra_lab.storage.provenance import Provenance
from registry import Metric

Records = Sequence[dict[str, Any]]
POINTS = 200  # of a curve, at most


def of_split(records: Records, split: str) -> list[dict[str, Any]]:
    return [record for record in records if record["split"] == split]


def points(records: Records, split: str, key: str) -> list[tuple[int, float]]:
    """Return the steps and the numbers of a key that the records of a split have."""
    return [(record["step"], record[key]) for record in of_split(records, split) if is_number(record.get(key))]


def curve(records: Records, split: str, key: str, axis: str) -> tuple[list[float], list[float]]:
    """Return the places and the values of a key over `step`, `tokens` or `flops` of training, thinned.

    The tokens and the FLOPs at an evaluation are interpolated from the training records.
    """
    import numpy as np  # here, as listings need none

    train = [(record["step"], record[axis]) for record in of_split(records, "train") if record.get(axis)]
    line = points(records, split, key)
    if not train or not line:
        return [], []
    # Thin the points, but keep the last one.
    last, every = line[-1], -(-len(line) // POINTS)
    line = line[::every] if every == 1 else [*line[::every], last]
    steps, numbers = zip((0, 0), *train, strict=True)
    places = np.interp([step for step, _ in line], steps, numbers)
    return places.tolist(), [value for _, value in line]


def last_evaluation(records: Records) -> dict[str, Any] | None:
    """Return the test record, whose numbers are the final ones; before the end of training, the last validation."""
    evaluations = of_split(records, "test") or of_split(records, "validation")
    return evaluations[-1] if evaluations else None


def training_seconds(records: Records) -> float | None:
    """Return the time spent in training steps, without evaluation: the tokens of each logged window over its rate.

    The window's own `seconds` would leave out the time before a resume. None if it is not known.
    """
    total, before = 0.0, 0
    for record in of_split(records, "train"):
        if not record.get("tokens_per_second") or not record.get("tokens"):
            return None
        total += (record["tokens"] - before) / record["tokens_per_second"]
        before = record["tokens"]
    return total or None


def last_number(records: Records, split: str, key: str) -> float | None:
    """Return a number of the last record of a split."""
    value = next((record.get(key) for record in reversed(records) if record["split"] == split), None)
    return float(value) if is_number(value) else None


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


Skill = Literal["detection", "tokens", "task"]
Level = Literal["learned", "begun", "hardly", "not", "unseen", "unknown"]
# By metric whose gain shows a skill: the network, and the skill.
SKILLS: dict[str, tuple[str, Skill]] = {
    "discriminator_auc": ("discriminator", "detection"),
    "generator_mask_loss": ("generator", "tokens"),
    "discriminator_token_mask_loss": ("discriminator", "tokens"),
}
# A gain as a share of the way from the better baseline to perfection: below the first number it is hardly learned,
# below the second begun. From an AUC of 0.5 on, these are 0.556 and 0.638, Cohen's (1988) small and medium effects,
# d = 0.2 and 0.5. No loss comes near 0, as text has an entropy; small networks save a tenth in minutes.
GRADES: dict[Skill, tuple[float, float]] = {"detection": (0.11, 0.28), "tokens": (0.05, 0.10), "task": (0.11, 0.28)}
LEAST_RECALL = 0.05  # at threshold 0.5; with less, a discriminator has not learned to detect, whatever its AUC


@dataclass(frozen=True)
class Judgement:
    """The skill of a network, by the gain of a metric over the better baseline."""

    network: str
    skill: Skill
    level: Level
    metric: str
    baseline: str
    share: float  # the gain, of the way from the baseline to perfection
    perfect: int

    @property
    def learned(self) -> bool:
        return self.level in ("learned", "begun")


def judgements(record: Mapping[str, Any], provenance: Provenance) -> list[Judgement]:
    """Return the skills of a run's networks by an evaluation, failures first.

    Empty if it has no gains, as of an objective with other metrics. A generator without parameters is not judged.
    """
    metrics, judged = titled(provenance.metrics), []
    for name, (network, skill) in SKILLS.items():
        judgement = judge(record, metrics, name, network, skill)
        if judgement and provenance.parameters.get(network, 1):
            judged.append(judgement)
    return sorted(judged, key=lambda judgement: judgement.learned)


def judge(
    record: Mapping[str, Any], metrics: Mapping[str, Metric], name: str, network: str, skill: Skill
) -> Judgement | None:
    """Judge a skill by the gain of a metric over its better baseline; None if it has no gain."""
    baselines = [base for base in metrics.get(name, Metric()).baselines if record.get(base) is not None]
    gain = record.get(f"{name}_gain")
    if gain is None or not baselines:
        return None
    # The gain over the better baseline, relative to the way from there to perfection.
    perfect, best = (1, max) if metrics[name].higher_is_better else (0, min)
    baseline = best(baselines, key=lambda base: record[base])
    room = abs(perfect - record[baseline]) or 1.0
    little, much = (share * room for share in GRADES[skill])
    level = _level(gain, record.get(f"{name}_gain_low"), record.get(f"{name}_gain_high"), little, much)
    recall = record.get("discriminator_recall") if skill == "detection" else None
    if level == "learned" and recall is not None and recall < LEAST_RECALL:
        level = "begun"
    if level == "unknown" and skill == "task" and gain <= 0:  # few examples, and none of them speaks for it
        level = "unseen"
    return Judgement(network, skill, level, name, baseline, gain / room, perfect)


def _level(gain: float, low: float | None, high: float | None, little: float, much: float) -> Level:
    """Grade a gain with its interval: a wide interval around zero shows nothing."""
    if low is None or high is None:
        return "unknown"
    if low > 0:
        if gain >= much:
            return "learned"
        return "begun" if gain >= little else "hardly"
    if high <= 0:
        return "not"
    return "unseen" if high < little else "unknown"  # also of bounds that are not numbers


def titled(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Return the metrics and their baselines, each with a title: its name if it declares none, or is not declared."""
    declared = dict(metrics)
    for metric in metrics.values():
        declared |= {name: Metric() for name in metric.baselines if name not in declared}
    return {name: replace(metric, title=metric.title or name) for name, metric in declared.items()}


def measured(record: Mapping[str, Any], metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Return the metrics of an evaluation in the order of their declaration, without baselines."""
    declared = titled(metrics)
    baselines = set[str]().union(*(metric.baselines for metric in declared.values()))
    return {name: metric for name, metric in declared.items() if name in record and name not in baselines}
