"""Runs, fine-tunings and ablations below a folder: state, progress and the metrics that can be compared. No torch."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import yaml

from electra_lab.analysis.records import last_evaluation, training_seconds
from electra_lab.storage.catalog import Kind, find, has_diverged, is_held
from electra_lab.storage.files import MANIFEST, read_as, read_json, read_yaml
from electra_lab.storage.plan import Plan, read_measures
from electra_lab.storage.provenance import compared, flat, read_provenance, refuse_other
from electra_lab.storage.records import last_records
from registry import Metric
from registry.errors import CheckpointError, ConfigError, did_you_mean

State = Literal["running", "finished", "stopped", "diverged", "failed", "damaged"]


@dataclass(frozen=True)
class Job:
    """A run, a fine-tuning or an ablation.

    done, total  steps of a run, seeds of a fine-tuning, cells of an ablation; of a stopped run, the saved steps
    seconds      duration of the training steps; of a long metrics.jsonl, extrapolated from the speed at its end
    written      time of its last record, in seconds since 1970
    numbers      the metrics that can be compared, the most important one first; of an ablation, the best mean of a
                 variant that has all cells
    verdict      conclusion of an ablation's page
    """

    path: Path
    kind: Kind | None
    name: str
    state: State
    done: int = 0
    total: int = 0
    seconds: float | None = None
    started: str = ""
    written: float = 0.0
    numbers: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    verdict: str = ""
    error: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def leading(self) -> str:
        """The name of the most important metric that it has; "" if it has none."""
        return next(iter(self.numbers), "")

    def matches(self, word: str) -> bool:
        """Return True for its state, its kind, a pattern of its name or path, or KEY=VALUE of its config."""
        key, equals, value = word.partition("=")
        if equals and key in self.config:
            try:
                return bool(self.config[key] == yaml.safe_load(value)) or str(self.config[key]) == value
            except yaml.YAMLError:
                return False
        return word in (self.state, self.kind) or fnmatchcase(self.name, word) or fnmatchcase(str(self.path), word)

    def as_dict(self) -> dict[str, Any]:
        """Return the values that JSON shows."""
        hidden = {"config", "metrics"}
        return {key: value for key, value in self.__dict__.items() if key not in hidden} | {"path": str(self.path)}


def jobs(root: Path) -> Iterator[Job]:
    """Yield the jobs at or below a folder. One that cannot be read has the state `damaged`, and an error."""
    readers: Mapping[Kind, Callable[[Path], Job]] = {"run": _run, "fine-tuning": _finetuning, "ablation": _ablation}
    for path, kind, problem in find(root):
        try:
            if kind:
                job = readers[kind](path)
                yield replace(job, written=_written(path))
                continue
        except (CheckpointError, ConfigError) as error:
            problem = str(error)
        except (OSError, KeyError, TypeError, ValueError, AttributeError, yaml.YAMLError, RecursionError) as error:
            problem = f"{path}: is damaged ({type(error).__name__})."
        yield Job(path, kind, path.name, "damaged", error=problem)


def ordered(selection: Sequence[Job], by: str) -> list[Job]:
    """Sort by `newest`, `name` or a metric, whose best number comes first. Raises ConfigError for another word."""
    if by == "newest":
        return sorted(selection, key=lambda job: -job.written)
    if by == "name":
        return sorted(selection, key=lambda job: (job.name, str(job.path)))
    metric = Metric()
    for job in selection:
        metric = job.metrics.get(by, metric)
    if not metric.comparable:
        raise ConfigError(f"--sort {by}: is measured on each run's own task, so it cannot compare runs.")
    keys = {"newest", "name"}.union(*(job.numbers for job in selection))
    if by not in keys:
        raise ConfigError(f"--sort {by}: is not a metric of these jobs.{did_you_mean(by, keys)}")
    sign = -1 if metric.higher_is_better else 1
    return sorted(selection, key=lambda job: sign * job.numbers[by] if by in job.numbers else math.inf)


def _run(path: Path) -> Job:
    if not (path / "provenance.json").is_file():
        if (path / "metrics.jsonl").is_file() or (path / "checkpoints").is_dir():
            return Job(path, "run", path.name, "damaged", error=f"{path}: has no provenance.json.")
        return Job(path, "run", path.name, "running" if is_held(path / ".lock") else "stopped")
    began = read_provenance(path)
    records = last_records(path / "metrics.jsonl", began.id)
    if not (path / "config.yaml").is_file():
        raise CheckpointError(f"{path / 'config.yaml'}: is missing.")
    done = max((record["step"] for record in records), default=0)
    tested = any(record["split"] == "test" and record["step"] >= began.steps for record in records)
    config, metrics = began.config, began.metrics
    state = _state(path, finished=tested or (path / "results.json").is_file())
    if state in ("stopped", "failed"):  # the steps after the last checkpoint are lost
        saved = (path / "checkpoints").glob(f"step-*/{MANIFEST}")
        done = max((int(file.parent.name.removeprefix("step-")) for file in saved), default=0)
    return Job(
        path,
        "run",
        str(config["name"]),
        state,
        done,
        began.steps,
        training_seconds(records),
        began.started,
        numbers=compared(metrics, last_evaluation(records) or {}),
        metrics=metrics,
        config=flat(config),
    )


def _finetuning(path: Path) -> Job:
    config: dict[str, Any] = dict(read_yaml(path / "finetuning.yaml"))
    folders = [path / f"seed-{seed}" for seed in config["seeds"]]
    begun = [folder for folder in folders if (folder / "provenance.json").is_file()]
    finished = [folder / "results.json" for folder in begun if (folder / "results.json").is_file()]
    seconds = [training_seconds(last_records(folder / "metrics.jsonl")) for folder in begun]
    first = read_provenance(begun[0]) if begun else None
    metrics = first.metrics if first else {}
    # The mean over the seeds.
    scores = list[dict[str, float]]()
    for file in finished:
        results = read_json(file)
        refuse_other(file, results["run"], read_provenance(file.parent).id)
        scores.append(_labelled(results["splits"]))
    means = dict[str, float]()
    for name in metrics:
        values = [score[name] for score in scores if score.get(name) is not None]
        if values:
            means[name] = fmean(values)
    return Job(
        path,
        "fine-tuning",
        str(config["name"]),
        _state(path, finished=len(finished) == len(folders)),
        len(finished),
        len(folders),
        sum(filter(None, seconds)) or None,
        first.started if first else "",
        numbers=compared(metrics, means),
        metrics=metrics,
        config=flat(config),
    )


def _labelled(splits: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of the first held-out split with labels."""
    return next((dict(split["metrics"]) for split in splits.values() if split["metrics"]), {})


def _ablation(path: Path) -> Job:
    plan = read_as(Plan, path / "plan.json")
    # The state and the time of each cell.
    states, seconds, metrics = list[State](), 0.0, dict[str, dict[str, float]]()
    for cell in plan.cells:
        folder = path / "cells" / cell.id
        measured = read_measures(folder / "measures.json", cell.id).numbers
        metrics[cell.id] = {}
        for numbers in measured.values():
            metrics[cell.id] |= {name: value for name, value in numbers.items() if value is not None}
        pruned = (folder / "pruned.json").is_file()
        if pruned or all(measure.key in measured for measure in plan.measures_of(cell)):
            states.append("finished")
        elif is_held(path / "claims" / cell.id):
            states.append("running")
        else:
            states.append("failed" if (path / "failed" / f"{cell.id}.json").is_file() else "stopped")
        trained = folder / f"seed-{cell.seed}" if cell.task else folder
        seconds += training_seconds(last_records(trained / "metrics.jsonl")) or 0
    # That of all together.
    ranks: list[State] = ["running", "failed", "stopped", "finished"]
    state: State = min(states, key=ranks.index, default="finished")
    best = compared(plan.metrics, _best_mean(plan, metrics))
    return Job(
        path,
        "ablation",
        plan.name,
        state,
        states.count("finished"),
        len(plan.cells),
        seconds or None,
        numbers=best,
        metrics=plan.metrics,
        verdict=_verdict(path / "table.md"),
    )


def _best_mean(plan: Plan, metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the best mean of the leading metric over the cells of a variant; empty if no variant has it in all.

    The average over tasks is the mean over each task's seeds, and then over the tasks.
    """
    tasks = {plan.metric} & {*plan.tasks} or {*plan.tasks} or {""}
    values = defaultdict[str, dict[str, list[float]]](lambda: defaultdict(list))
    for cell in plan.cells:
        if cell.task in tasks:
            values[cell.variant][cell.task].append(metrics[cell.id].get(cell.task or plan.metric, math.nan))
    means = [fmean(map(fmean, by_task.values())) for by_task in values.values()]
    best = max if plan.metrics[plan.metric].higher_is_better else min
    whole = [*filter(math.isfinite, means)]
    return {plan.metric: best(whole)} if whole else {}


def _verdict(table: Path) -> str:
    """Return the first sentence of table.md, which is bold; "" before the first report."""
    text = table.read_text("utf-8") if table.is_file() else ""
    sentence = re.search(r"^\*\*(.+?)\*\*(?= |$)", text, re.MULTILINE)
    return re.sub(r"\\(.)", r"\1", sentence[1]) if sentence else ""


def _state(path: Path, *, finished: bool) -> State:
    if finished:
        return "finished"
    if is_held(path / ".lock"):
        return "running"
    return "diverged" if has_diverged(path) else "stopped"


def _written(path: Path) -> float:
    """Return the time of the last record of a job, in seconds since 1970."""
    files = [path, *path.glob("metrics.jsonl"), *path.glob("*/metrics.jsonl"), *path.glob("*/*/metrics.jsonl")]
    return max(file.stat().st_mtime for file in files[1:] or files)
