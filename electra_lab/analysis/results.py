"""The folder of an ablation as values: the plan, and the result of each cell."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from electra_lab.analysis.comparisons import Comparisons, compare
from electra_lab.analysis.intervals import Difference, Layers, difference
from electra_lab.analysis.power import Spread, spread
from electra_lab.analysis.records import last_number, training_seconds
from electra_lab.storage.ablation_folder import AblationFolder, Failure
from electra_lab.storage.plan import Cell, Measures, Plan, PlannedMeasure
from electra_lab.storage.provenance import Provenance
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import CheckpointError

Status = Literal["done", "pruned", "failed", "unmeasured", "unfinished", "missing"]
TRAINING = "training"  # the first thing that a cell needs
AVERAGE = "average"  # the metric that is the mean over all tasks
CONSTANT = f"{AVERAGE}_constant"  # the same of the best constant answers


@dataclass(frozen=True)
class CellResult:
    """The state of a cell, or of a reference run of a measure.

    missing    remaining work: `training`, or the keys of measures; empty if done
    documents  contributions of the test documents, by metric
    error      reason of the failure after `attempts`; without attempts, a damaged file
    pruned     reason why a search ended it early
    """

    plan: Cell
    run: RunDirectory
    missing: tuple[str, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    documents: dict[str, list[float]] = field(default_factory=dict)
    error: str = ""
    attempts: int = 0
    pruned: str = ""

    @property
    def status(self) -> Status:
        """Describe its progress.

        done        trained, and measured in full
        pruned      ended early by a search
        unmeasured  trained; it lacks measures
        unfinished  begun, but not trained to the end
        missing     not begun
        failed      not done, and `error` says why
        """
        if self.pruned:
            return "pruned"
        if not self.missing:
            return "done"
        if self.attempts:
            return "failed"
        if self.trained:
            return "unmeasured"
        return "unfinished" if self.run.path.is_dir() else "missing"

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        with self._curable():
            return self.run.records()

    @cached_property
    def provenance(self) -> Provenance | None:
        if not (self.run.path / "provenance.json").is_file():
            return None
        with self._curable():
            return self.run.provenance()

    @contextmanager
    def _curable(self) -> Iterator[None]:
        """Add the cure to an error of a damaged file."""
        try:
            yield
        except CheckpointError as error:
            raise CheckpointError(f"{error} Remove {self.run.path}, and `electra-lab ablate` recreates it.") from None

    @property
    def costs(self) -> Provenance | Cell:
        """Steps, FLOPs and parameters of the run; before it begins, those of the plan, without a known vocabulary."""
        return self.provenance or self.plan

    @property
    def trained(self) -> bool:
        return TRAINING not in self.missing and not self.pruned

    @property
    def tokens(self) -> float | None:
        return last_number(self.records, "train", "tokens") if self.trained else None

    @property
    def seconds(self) -> float | None:
        return training_seconds(self.records) if self.trained else None


@dataclass(frozen=True)
class Results:
    folder: Path
    plan: Plan
    cells: list[CellResult]
    failed_references: dict[str, str]  # by id, why a run that measures need is not there

    def of(self, variant: str) -> list[CellResult]:
        return [cell for cell in self.cells if cell.plan.variant == variant]

    def values(self, metric: str) -> dict[str, dict[int, float]]:
        """Return the metric by variant and by seed, of the cells that have it."""
        by_variant: dict[str, dict[int, float]] = {variant.label: {} for variant in self.plan.variants}
        for cell in self.cells:
            if metric in cell.metrics:
                by_variant[cell.plan.variant][cell.plan.seed] = cell.metrics[metric]
        return by_variant

    def has(self, metric: str) -> bool:
        return any(metric in cell.metrics for cell in self.cells)

    @cached_property
    def comparisons(self) -> Comparisons:
        """All comparisons of the variants."""
        metrics = {name: metric for name, metric in self.plan.metrics.items() if self.has(name)}
        values = {name: self.values(name) for name in metrics if name not in self.plan.trivial}
        layers = {name: self._layers(name, metric.parts) for name, metric in metrics.items()}
        return compare(values, self.plan.metric, self.plan.baseline, layers, self._over_trivial(layers))

    def _over_trivial(self, layers: Mapping[str, Layers]) -> dict[tuple[str, str], Difference]:
        """Return, by variant and baseline that needs no training, the leading metric minus that of the baseline."""
        differences, leading = {}, self.plan.metric
        leading_layers = layers.get(leading, {})
        for baseline in filter(self.has, self.plan.metrics[leading].baselines):
            baseline_values, baseline_layers = self.values(baseline), layers[baseline]
            title = self.plan.metrics[baseline].title or baseline
            for label, values in self.values(leading).items():
                units = {}
                for name in leading_layers.keys() & baseline_layers:
                    units[name] = leading_layers[name].get(label, {}), baseline_layers[name].get(label, {})
                differences[label, title] = difference(values, baseline_values[label], units)
        return differences

    def trivial(self, metric: str) -> dict[str, float]:
        """Return, by its title, the mean over all cells of each baseline of a metric that needs no training."""
        means = {}
        for name in filter(self.has, self.plan.metrics[metric].baselines):
            numbers = [cell.metrics[name] for cell in self.cells if name in cell.metrics]
            means[self.plan.metrics[name].title or name] = sum(numbers) / len(numbers)
        return means

    def _layers(self, metric: str, parts: Sequence[str]) -> Layers:
        """Return the sources of variation of a metric besides the seed: the documents, its references."""
        documents, references = dict[str, Sequence[float]](), dict[str, Sequence[float]]()
        for cell in self.cells:
            if metric not in cell.metrics:
                continue
            if metric in cell.documents:
                documents[cell.plan.id] = cell.documents[metric]
            by_reference = [cell.metrics[part] for part in parts if part in cell.metrics]
            if len(by_reference) == len(parts) > 1:
                references[cell.plan.id] = by_reference
        kinds = {"documents": documents, "references": references}
        return {name: self._by_variant(units) for name, units in kinds.items() if units}

    def _by_variant(self, units: Mapping[str, Sequence[float]]) -> dict[str, dict[int, Sequence[float]]]:
        by_variant: dict[str, dict[int, Sequence[float]]] = {variant.label: {} for variant in self.plan.variants}
        for cell in self.cells:
            if cell.plan.id in units:
                by_variant[cell.plan.variant][cell.plan.seed] = units[cell.plan.id]
        return by_variant

    def count(self, status: Status) -> int:
        return sum(cell.status == status for cell in self.cells)


def expected(plan: Plan) -> Spread | None:
    """Return the spread of the leading metric by the file or its pilot; None if the file has neither, or it is gone."""
    if plan.sd:
        return Spread(plan.sd, "by the file")
    with suppress(CheckpointError):
        if plan.pilot:
            differences = read(Path(plan.pilot)).comparisons.against(plan.metric).values()
            return spread(differences, f"by the pilot {plan.pilot}")
    return None


def read(path: Path) -> Results:
    """Read the folder of an ablation. Raises CheckpointError, which names the damaged file."""
    folder = AblationFolder(path)
    plan = folder.plan
    cells = _with_average(plan, [cell_result(folder, plan, cell.id) for cell in plan.cells])
    references = {id: cell_result(folder, plan, id) for id in plan.references}
    failed = {id: reference.error for id, reference in references.items() if reference.status == "failed"}
    return Results(path, plan, cells, failed)


def cell_result(folder: AblationFolder, plan: Plan, id: str) -> CellResult:
    """Return the state of a cell or a reference. Only this function decides which work is left.

    A cell that is measured, and a reference that every measure has used, are done, whatever else is left of them.
    Raises CheckpointError if the note of a failure is damaged.
    """
    cell, failure = plan.by_id[id], folder.failure(id)
    if cell.task:
        run = folder.finetuning(id).seed(cell.seed)
        finished = (run.path / "results.json").is_file()
    else:
        run = folder.run(id)
        finished = run.finished()
    if id in plan.references:
        used = finished or folder.is_used(id, plan)
        return _failed(CellResult(cell, run, () if used else (TRAINING,)), failure)
    if reason := folder.pruned(id):
        return CellResult(cell, run, pruned=reason)
    measures, error = Measures(run=id, step=0), ""
    try:
        measures = folder.measures(id, _last_step(run))
    except CheckpointError as damaged:
        error = str(damaged)
    metrics, documents, missing = dict[str, float](), dict[str, list[float]](), list[str]()
    for measure in plan.measures_of(cell):
        if measure.key not in measures.numbers:
            missing.append(measure.key)
        for name, value in measures.numbers.get(measure.key, {}).items():
            if name in measure.metrics and value is not None and math.isfinite(value):
                metrics[name] = value
        documents |= measures.documents.get(measure.key, {})
    if missing and not finished:
        missing = [TRAINING]
    return _failed(CellResult(cell, run, tuple(missing), metrics, documents, error if missing else ""), failure)


def _last_step(run: RunDirectory) -> int | None:
    """Return the step that a run's measures are of; None if it is not known, as its provenance.json may be gone."""
    try:
        return run.provenance().steps
    except CheckpointError:
        return None


def _failed(result: CellResult, failure: Failure | None) -> CellResult:
    """Add the reason of a failure. A finished cell is finished, whatever happened to earlier attempts."""
    if not result.missing or failure is None:
        return result
    return replace(result, error=failure.error, attempts=failure.attempts)


def is_ready(folder: AblationFolder, plan: Plan, measure: PlannedMeasure) -> bool:
    """Return True if a measure can be taken: all of its references are trained, or were used before."""
    lacking = (cell_result(folder, plan, id).missing for id in measure.references.values())
    return folder.shared(measure).is_dir() or not any(lacking)


def left_to_do(folder: AblationFolder, plan: Plan) -> dict[str, CellResult]:
    """Return the cells and references that are wanted and not done, by id."""
    results = {id: cell_result(folder, plan, id) for id in plan.wanted}
    return {id: result for id, result in results.items() if result.missing}


def waiting_work(folder: AblationFolder, plan: Plan, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the missing work that can be done now: a measure waits until its references are trained."""
    ready = {TRAINING, *(measure.key for measure in plan.measures if is_ready(folder, plan, measure))}
    missing = {id: cell_result(folder, plan, id).missing for id in ids}
    return {id: lacking for id, lacking in missing.items() if not ready.isdisjoint(lacking)}


def _with_average(plan: Plan, cells: list[CellResult]) -> list[CellResult]:
    """Give the cells of a variant and a seed the mean over all tasks, if each of these has a number."""
    tasks = plan.tasks
    if len(tasks) < 2:
        return cells
    # The number of each task, and that of its best baseline.
    scores = defaultdict[tuple[str, int], dict[str, float]](dict)
    baselines = defaultdict[tuple[str, int], dict[str, float]](dict)
    for cell in cells:
        task, key = cell.plan.task, (cell.plan.variant, cell.plan.seed)
        if task in cell.metrics:
            best = max if plan.metrics[task].higher_is_better else min
            trivial = [cell.metrics.get(name, math.nan) for name in plan.metrics[task].baselines]
            scores[key][task], baselines[key][task] = cell.metrics[task], best(trivial, default=math.nan)
    averaged = []
    for cell in cells:
        key, average = (cell.plan.variant, cell.plan.seed), dict[str, float]()
        for name, numbers in ((AVERAGE, scores[key]), (CONSTANT, baselines[key])):
            if len(numbers) == len(tasks) and math.isfinite(sum(numbers.values())):
                average[name] = sum(numbers.values()) / len(tasks)
        averaged.append(replace(cell, metrics=cell.metrics | average))
    return averaged
